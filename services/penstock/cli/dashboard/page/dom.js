"use strict";
// Elements and texts. Texts of the mesh are only ever set as text, so that no name is markup.

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const query = (selector) => document.querySelector(selector);
const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

const count = (value) => Math.round(value).toLocaleString("en-US");
const percent = (value) => `${Math.round(100 * value)} %`;
const rounded = (value, digits) => value.toLocaleString("en-US", { maximumFractionDigits: digits });
const rate = (value) => rounded(value, value < 100 ? 1 : 0);
const milliseconds = (seconds) => `${rounded(1e3 * seconds, seconds < 0.1 ? 1 : 0)} ms`;
const megabytes = (bytes) => count(bytes / 1e6);

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

// A table of rows. A column is [heading, text of a row, whether it is a number].
function table(columns, rows, emptyText) {
  if (!rows.length) return element("p", { class: "empty" }, emptyText);
  const kind = (isNumber) => (isNumber ? { class: "number" } : {});
  const heads = columns.map(([head, , isNumber]) => element("th", kind(isNumber), head));
  const lines = rows.map((row) =>
    element("tr", {}, ...columns.map(([, text, isNumber]) => element("td", kind(isNumber), text(row)))),
  );
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines));
}
