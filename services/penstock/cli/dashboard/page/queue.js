"use strict";
// Waiting and running requests by class and tenant, the shards, and the rejections.

const CLASSES = ["interactive", "standard", "batch"];
const MAX_TENANTS = 12; // rows; those with the most waiting requests
const QUEUE = { label: 84, row: 46, numbers: 130 }; // px

// One row per class with the tenants of it, also without any; the tenants in the order of the frame.
function queueClasses(tenants) {
  const names = [...CLASSES, ...new Set(tenants.map((row) => row.class).filter((name) => !CLASSES.includes(name)))];
  return names.map((name) => {
    const own = tenants.filter((row) => row.class === name);
    return { name, own, waiting: sum(own, (row) => row.waiting), running: sum(own, (row) => row.running) };
  });
}

// Segments of one bar: a tenant each, with its begin and width in px.
function segments(rows, valueOf, pixelsPerRequest) {
  let x = QUEUE.label;
  return rows
    .map((row) => ({ row, x, width: valueOf(row) * pixelsPerRequest }))
    .map((segment) => {
      const begin = x;
      x += segment.width;
      return { ...segment, x: begin };
    })
    .filter((segment) => segment.width > 0);
}

// The name, if a bar of that size has room for it.
const nameWithin = (name, width, height) => (height > 16 && width > 10 + 8 * name.length ? name : "");

function drawQueue(frame) {
  const place = query("#queue .picture");
  const width = Math.max(300, place.clientWidth);
  const classes = queueClasses(frame.tenants);
  const most = Math.max(1, ...classes.map((each) => Math.max(each.waiting, each.running)));
  const barWidth = width - QUEUE.label - QUEUE.numbers;
  const picture = shape("svg", {
    viewBox: `0 0 ${width} ${classes.length * QUEUE.row}`,
    role: "img",
    "aria-label": "waiting and running requests by class and tenant",
  });
  classes.forEach((each, at) => {
    const y = at * QUEUE.row;
    const bar = (valueOf, top, height, word) =>
      segments(each.own, valueOf, barWidth / most).map(({ row, x, width: length }) =>
        shape(
          "g",
          {},
          shape("rect", { class: `share ${each.name} ${word}`, x, y: y + top, width: length, height }),
          shape("text", { class: "tenant", x: x + 5, y: y + top + 15 }, nameWithin(row.tenant_id, length, height)),
          shape("title", {}, `${row.tenant_id}: ${count(valueOf(row))} ${word}`),
        ),
      );
    picture.append(
      shape("text", { x: 0, y: y + 21 }, each.name),
      shape("rect", { class: "track", x: QUEUE.label, y: y + 4, width: barWidth, height: 22 }),
      ...bar((row) => row.waiting, 4, 22, "waiting"),
      ...bar((row) => row.running, 28, 8, "running"),
      shape("text", { x: width, y: y + 20, "text-anchor": "end" }, `${count(each.waiting)} waiting`),
      shape("text", { class: "quiet", x: width, y: y + 36, "text-anchor": "end" }, `${count(each.running)} running`),
    );
  });
  place.replaceChildren(picture);
  query("#queue .tenants").replaceChildren(...tenantTable(frame.tenants));
  query("#queue .shards").replaceChildren(shardTable(frame.shards));
  query("#queue .sheds").replaceChildren(shedTable(frame.sheds));
}

function tenantTable(tenants) {
  const others = tenants.slice(MAX_TENANTS);
  const columns = [
    ["tenant", (row) => row.tenant_id],
    ["class", (row) => row.class],
    ["waiting", (row) => count(row.waiting), true],
    ["running", (row) => count(row.running), true],
    ["tokens", (row) => count(row.waiting_tokens), true],
    ["model", (row) => row.model],
  ];
  const rest = `and ${count(others.length)} more with ${count(sum(others, (row) => row.waiting))} waiting`;
  return [
    table(columns, tenants.slice(0, MAX_TENANTS), "No request waits or runs."),
    ...(others.length ? [element("p", { class: "empty" }, rest)] : []),
  ];
}

function shardTable(shards) {
  const wait = (name) => (row) => (row[name] === undefined ? "–" : milliseconds(row[name]));
  const columns = [
    ["shard", (row) => row.shard],
    ["waiting", (row) => count(row.waiting), true],
    ["leases/s", (row) => rate(row.leased_per_second), true],
    ["waited p50", wait("waited_s_p50"), true],
    ["p95", wait("waited_s_p95"), true],
    ["late p95", wait("late_s_p95"), true],
    ["model", (row) => row.model],
  ];
  return table(columns, shards, "No shard serves a model.");
}

function shedTable(sheds) {
  const columns = [
    ["reason", (row) => row.reason],
    ["class", (row) => row.class],
    ["by", (row) => row.by],
    ["requests", (row) => count(row.tickets), true],
    ["per s", (row) => rate(row.per_second), true],
  ];
  return table(columns, sheds, "No request has been rejected for load.");
}
