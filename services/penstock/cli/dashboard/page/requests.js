"use strict";
// Recent requests, and the waterfall of one: of the list, or of an answer that the user pastes.

const MAX_REQUESTS = 20;
const WATERFALL = { label: 150, row: 24, numbers: 128, minBar: 2 }; // px
const TIER_NAMES = ["edge", "auth", "queue", "scheduler", "worker", "network"];

let selectedRequest = null; // with its stages

// The timeline in an answer of the HTTP APIs, or in the output of `penstock generate --explain --json`.
function timelineOf(text) {
  const answer = JSON.parse(text);
  const found = answer.timeline || answer;
  if (!Array.isArray(found.stages) || !found.stages.length) throw new Error("it has no timeline; ask with explain");
  let end = 0;
  const stages = found.stages.map((stage) => {
    const length = Number(stage.length_s === undefined ? stage.seconds : stage.length_s);
    const start = Number(stage.start_s === undefined ? end : stage.start_s);
    if (!Number.isFinite(length) || !Number.isFinite(start)) throw new Error("a stage has no length in seconds");
    end = start + length;
    return { tier: String(stage.tier), name: String(stage.name), start_s: start, length_s: length };
  });
  const total = Number(found.total_s === undefined ? found.latency_s || end : found.total_s);
  const id = String(answer.request_id || answer.id || found.trace_id || "pasted answer");
  return { request_id: id, total_s: total, stages };
}

// The stages, and what is left between them and the total as a stage of the network.
function completeStages({ stages, total_s: total }) {
  const end = Math.max(0, ...stages.map((stage) => stage.start_s + stage.length_s));
  const rest = { tier: "network", name: "outside of the edge", start_s: end, length_s: total - end };
  return total - end > 1e-6 ? [...stages, rest] : stages;
}

function drawWaterfall() {
  const place = query("#requests .waterfall");
  if (!selectedRequest) {
    place.replaceChildren();
    return;
  }
  const stages = completeStages(selectedRequest);
  const total = Math.max(1e-9, ...stages.map((stage) => stage.start_s + stage.length_s));
  const width = Math.max(300, place.clientWidth);
  const barWidth = width - WATERFALL.label - WATERFALL.numbers;
  const picture = shape("svg", { viewBox: `0 0 ${width} ${stages.length * WATERFALL.row}`, role: "img" });
  picture.setAttribute("aria-label", `waterfall of ${selectedRequest.request_id}`);
  stages.forEach((stage, at) => {
    const y = at * WATERFALL.row;
    const length = Math.max(WATERFALL.minBar, (barWidth * stage.length_s) / total);
    const x = WATERFALL.label + Math.min(barWidth - length, (barWidth * stage.start_s) / total);
    const tier = TIER_NAMES.includes(stage.tier) ? stage.tier : "network";
    picture.append(
      shape("text", { x: 0, y: y + 16 }, `${stage.tier} ${stage.name}`),
      shape("rect", { class: "track", x: WATERFALL.label, y: y + 3, width: barWidth, height: 18 }),
      shape("rect", { class: `stage ${tier}`, x, y: y + 3, width: length, height: 18, rx: 2 }),
      shape(
        "text",
        { class: "quiet", x: width, y: y + 16, "text-anchor": "end" },
        `${milliseconds(stage.length_s)} · ${percent(stage.length_s / total)}`,
      ),
    );
  });
  const { request_id: id, cause } = selectedRequest;
  const texts = [`${id}: ${milliseconds(total)}`, cause].filter(Boolean);
  place.replaceChildren(...texts.map((text) => element("p", {}, text)), picture);
}

function drawRequests(frame) {
  const place = query("#requests .list");
  const rows = frame.requests.slice(0, MAX_REQUESTS);
  const none = "No edge lists recent requests. Paste an answer below.";
  if (!rows.length) {
    if (place.dataset.key !== "none") place.replaceChildren(element("p", { class: "empty" }, none));
    place.dataset.key = "none";
    return;
  }
  const key = rows.map((row) => row.request_id).join(" ") + (selectedRequest ? selectedRequest.request_id : "");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.replaceChildren(...rows.map((row) => requestButton(row, frame)));
}

function requestButton(row, frame) {
  const isSelected = selectedRequest && selectedRequest.request_id === row.request_id;
  const button = element(
    "button",
    { type: "button", class: isSelected ? "request selected" : "request" },
    element("span", { class: "id" }, row.request_id),
    element("span", {}, row.tenant_id || ""),
    element("span", {}, row.outcome || ""),
    element("span", {}, milliseconds(row.total_s)),
  );
  button.addEventListener("click", () => {
    selectedRequest = row;
    drawRequests(frame);
    drawWaterfall();
  });
  return button;
}

query("#answer").addEventListener("input", (event) => {
  const error = query("#answer-error");
  error.textContent = "";
  if (!event.target.value.trim()) return;
  try {
    selectedRequest = timelineOf(event.target.value);
    drawWaterfall();
  } catch (problem) {
    error.textContent = `This is not an answer with a timeline: ${problem.message}`;
  }
});
