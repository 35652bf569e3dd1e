"use strict";
// The batch and the KV pool of each worker: a large tile each for few workers, small ones for many.

const MAX_LARGE_TILES = 12;
const MAX_CELLS = 128; // slots that are drawn one by one
const CELL = { size: 8, step: 10, perLine: 18 };
const FULL_SHARE = 0.999;

const usedKv = (row) => clamp(1 - row.free_kv_share, 0, 1);
const workerText = (row, isDraining) =>
  `${row.worker}: ${count(row.running)} of ${count(row.slots)} slots, ${percent(usedKv(row))} of ` +
  `${count(row.kv_blocks)} KV blocks, ${count(row.prefill_tokens)} tokens to prefill, ` +
  `${count(row.tokens_per_second)} tokens/s, ${row.model} ${row.card_digest.slice(0, 8)}` +
  `${row.zone ? `, ${row.zone}` : ""}, by ${row.scheduler}${isDraining ? ", draining" : ""}`;

class Tile {
  constructor(isLarge, slots) {
    this.isLarge = isLarge;
    this.slots = slots;
    this.name = element("span", { class: "name" });
    this.numbers = element("span", { class: "numbers" });
    this.batch = isLarge && slots <= MAX_CELLS ? new Cells(slots) : new Bar("batch", isLarge);
    this.kv = new Bar("kv", isLarge);
    this.node = element("button", { type: "button", class: "tile" });
    this.node.append(...(isLarge ? [this.name, this.batch.node, this.kv.node, this.numbers] : [smallPicture(this)]));
    this.node.addEventListener("click", () => selectWorker(this.id));
  }

  draw(row, isDraining) {
    this.id = row.worker_id;
    const text = workerText(row, isDraining);
    setAttributes(this.node, { "aria-label": text, title: text });
    this.node.classList.toggle("draining", isDraining);
    this.node.classList.toggle("selected", row.worker_id === selectedWorker);
    this.batch.draw(clamp(row.batch_fill, 0, 1));
    this.kv.draw(usedKv(row));
    if (!this.isLarge) return;
    setText(this.name, row.worker);
    const numbers = `${count(row.running)} running, ${count(row.slots)} slots · KV ${percent(usedKv(row))}`;
    setText(this.numbers, `${numbers} · ${count(row.tokens_per_second)} tokens/s`);
  }
}

function smallPicture(tile) {
  tile.kv.node.setAttribute("transform", "translate(11 0)");
  return shape("svg", { viewBox: "0 0 20 36" }, tile.batch.node, tile.kv.node);
}

// A bar that fills from the left, or in a small tile from below.
class Bar {
  constructor(kind, isLarge) {
    this.kind = kind;
    this.isLarge = isLarge;
    this.size = isLarge ? { width: 200, height: 8 } : { width: 9, height: 36 };
    this.fill = shape("rect", { ...this.size });
    const parts = [shape("rect", { class: "track", ...this.size }), this.fill];
    this.node = isLarge
      ? shape("svg", { viewBox: `0 -2 ${this.size.width} ${this.size.height + 4}` }, ...parts)
      : shape("g", {}, ...parts);
  }

  draw(share) {
    const { width, height } = this.size;
    const length = this.isLarge ? { width: width * share } : { y: height * (1 - share), height: height * share };
    setAttributes(this.fill, { ...length, class: share > FULL_SHARE ? `${this.kind} full` : this.kind });
  }
}

// One cell per slot.
class Cells {
  constructor(slots) {
    this.cells = Array.from({ length: slots }, (_, at) =>
      shape("rect", {
        x: (at % CELL.perLine) * CELL.step,
        y: Math.floor(at / CELL.perLine) * CELL.step,
        width: CELL.size,
        height: CELL.size,
        rx: 1,
      }),
    );
    const lines = Math.ceil(slots / CELL.perLine);
    const size = `0 0 ${CELL.perLine * CELL.step} ${lines * CELL.step}`;
    this.node = shape("svg", { viewBox: size }, ...this.cells);
  }

  draw(share) {
    const filled = Math.round(share * this.cells.length);
    const kind = share > FULL_SHARE ? "batch full" : "batch";
    this.cells.forEach((cell, at) => setAttributes(cell, { class: at < filled ? kind : "track" }));
  }
}

const tiles = new Map(); // by worker id
let selectedWorker = "";
let shownFrame = null;

function selectWorker(id) {
  selectedWorker = id === selectedWorker ? "" : id;
  drawWorkers(shownFrame);
}

function drawWorkers(frame) {
  shownFrame = frame;
  const isLarge = frame.workers.length <= MAX_LARGE_TILES;
  const draining = new Set(frame.processes.filter((row) => row.state === "draining").map((row) => row.instance_id));
  const rows = [...frame.workers].sort((one, other) => (one.worker_id < other.worker_id ? -1 : 1));
  const present = new Set(rows.map((row) => row.worker_id));
  for (const id of tiles.keys()) if (!present.has(id)) tiles.delete(id);
  const nodes = rows.map((row) => {
    let tile = tiles.get(row.worker_id);
    if (!tile || tile.isLarge !== isLarge || tile.slots !== row.slots) {
      tile = new Tile(isLarge, row.slots);
      tiles.set(row.worker_id, tile);
    }
    tile.draw(row, draining.has(row.worker_id));
    return [row, tile.node];
  });
  placeTiles(frame, nodes, isLarge);
  const selected = rows.find((row) => row.worker_id === selectedWorker);
  setText(query("#workers .detail"), selected ? workerText(selected, draining.has(selectedWorker)) : "");
}

// One grid per model and version. Grids are only made anew when their tiles change, so that a focus stays.
function placeTiles(frame, nodes, isLarge) {
  const fleet = query("#workers .fleet");
  const key = nodes.map(([row]) => row.worker_id).join(" ") + isLarge;
  if (fleet.dataset.key !== key) {
    const groups = frame.models.map((model) => {
      const own = nodes.filter(([row]) => row.model === model.model && row.card_digest === model.card_digest);
      const grid = element("div", { class: `tiles ${isLarge ? "large" : "small"}` }, ...own.map(([, node]) => node));
      return element("div", { class: "group" }, element("h3"), grid);
    });
    const empty = element("p", { class: "empty" }, "No worker is attached.");
    fleet.replaceChildren(...(groups.length ? groups : [empty]));
    fleet.dataset.key = key;
    query("#workers .legend").replaceChildren(...workerLegend());
  }
  fleet.querySelectorAll("h3").forEach((heading, at) => {
    const { model, card_digest: digest, workers, running, slots } = frame.models[at];
    const fleetText = `${count(workers)} ${workers === 1 ? "worker" : "workers"}, ${count(running)} running`;
    setText(heading, `${model} ${digest.slice(0, 8)}: ${fleetText}, ${count(slots)} slots`);
  });
}

function workerLegend() {
  const key = (kind) => element("span", { class: `key ${kind}` });
  const texts = ["slots of the batch", "all slots", "KV blocks; tap a worker for its figures"];
  return [key("batch"), texts[0], key("full"), texts[1], key("kv"), texts[2]];
}
