"use strict";
// The tiers in the order in which a request passes them, with the requests at each and the rates between them.

const NARROW_PX = 640; // below: from top to bottom
const FLOW_TIERS = ["edge", "auth", "queue", "scheduler", "worker"];

// The present requests of each tier. Edges know the state of all of their requests; without an edge, by tier.
function flowCounts(frame) {
  const active = (tier) => (tierOf(frame, tier) || { active: 0 }).active;
  const hasEdge = Boolean(tierOf(frame, "edge"));
  const slots = sum(frame.workers, (row) => row.slots);
  return {
    edge: [active("edge"), "open requests"],
    auth: hasEdge ? [frame.states.reserving, "reserving"] : [active("auth"), "reservations"],
    queue: [active("queue"), "waiting"],
    scheduler: hasEdge ? [frame.states.leased, "starting"] : [active("scheduler"), "leases"],
    worker: [sum(frame.workers, (row) => row.running), `running of ${count(slots)} slots`],
  };
}

// Texts beside the arrows that leave each tier, and the rate that moves them.
function flowRates(frame) {
  const requests = perSecond(frame, "edge") || 0;
  const leases = perSecond(frame, "queue") || 0;
  const tokens = perSecond(frame, "worker") || 0;
  return {
    edge: [requests, `${rate(requests)} requests/s`],
    auth: [requests, ""],
    queue: [leases, `${rate(leases)} leases/s`],
    scheduler: [leases, ""],
    worker: [tokens, `${rate(tokens)} tokens/s`],
  };
}

function flowLayout(isNarrow) {
  const gap = isNarrow ? 34 : 56;
  const node = isNarrow ? { width: 300, height: 84 } : { width: 150, height: 96 };
  const places = FLOW_TIERS.map((_, at) =>
    isNarrow ? { x: 20, y: 6 + at * (node.height + gap) } : { x: 6 + at * (node.width + gap), y: 24 },
  );
  const last = places[places.length - 1];
  const size = isNarrow ? [340, last.y + node.height + gap + 6] : [last.x + node.width + gap + 6, 160];
  return { gap, node, places, size };
}

// The places of the parts of a tier whose box begins at `x` and `y`: beside the box, or within it if space is narrow.
function partPlaces(isNarrow, { x, y }, node, gap) {
  const [right, below, middle] = [x + node.width, y + node.height, x + node.width / 2];
  const end = { "text-anchor": "end" };
  const centre = { "text-anchor": "middle" };
  if (isNarrow) {
    return {
      arrow: { x1: x + 40, y1: below, x2: x + 40, y2: below + gap },
      shedLine: { x1: right, y1: y + 46, x2: 340, y2: y + 46 },
      label: { x: x + 54, y: below + gap / 2 + 4 },
      shed: { x: right - 10, y: y + 48, ...end },
      processes: { x: right - 10, y: y + 20, ...end },
    };
  }
  return {
    arrow: { x1: right, y1: y + 46, x2: right + gap, y2: y + 46 },
    shedLine: { x1: middle, y1: below, x2: middle, y2: below + 20 },
    label: { x: middle, y: y - 8, ...centre },
    shed: { x: middle, y: below + 34, ...centre },
    processes: { x: x + 10, y: y + 82 },
  };
}

class Flow {
  constructor(isNarrow) {
    this.isNarrow = isNarrow;
    this.layout = flowLayout(isNarrow);
    const size = this.layout.size.join(" ");
    this.node = shape("svg", { viewBox: `0 0 ${size}`, role: "img", "aria-label": "requests in each tier" });
    this.tiers = FLOW_TIERS.map((tier, at) => this.addTier(tier, this.layout.places[at]));
  }

  addTier(tier, place) {
    const { x, y } = place;
    const { node, gap } = this.layout;
    const places = partPlaces(this.isNarrow, place, node, gap);
    const parts = {
      pipe: shape("line", { class: "pipe", ...places.arrow }),
      moving: shape("line", { class: "moving", ...places.arrow }),
      shedLine: shape("line", { class: "shed", ...places.shedLine }),
      label: shape("text", { class: "quiet", ...places.label }),
      shed: shape("text", { class: "shed", ...places.shed }),
      count: shape("text", { class: "count", x: x + 10, y: y + 46 }),
      word: shape("text", { class: "quiet", x: x + 10, y: y + 64 }),
      processes: shape("text", { class: "quiet", ...places.processes }),
      load: shape("rect", { class: "load", x, y: y + node.height - 5, height: 5, width: 0 }),
    };
    parts.group = shape(
      "g",
      { "data-tier": tier },
      shape("rect", { class: "tier", x, y, width: node.width, height: node.height, rx: 6 }),
      shape("text", { x: x + 10, y: y + 20 }, tier),
      ...Object.values(parts),
    );
    this.node.append(parts.group);
    return parts;
  }

  draw(frame) {
    const counts = flowCounts(frame);
    const rates = flowRates(frame);
    FLOW_TIERS.forEach((tier, at) => {
      const row = tierOf(frame, tier);
      const isShown = row || (tier === "worker" && frame.workers.length);
      const parts = this.tiers[at];
      parts.group.classList.toggle("absent", !isShown);
      setText(parts.count, isShown ? count(counts[tier][0]) : "–");
      setText(parts.word, isShown ? counts[tier][1] : "not polled");
      setText(parts.processes, row ? `${processText(row)}, ${percent(row.cpu_share)} CPU` : "");
      const load = row ? clamp(row.cpu_share_max, 0, 1) : 0;
      setAttributes(parts.load, { width: this.layout.node.width * load, class: load > 0.8 ? "load high" : "load" });
      setText(parts.label, row ? rates[tier][1] : "");
      moveLine(parts.moving, rates[tier][0]);
      const shed = sum(frame.sheds.filter((each) => each.by === tier), (each) => each.per_second);
      setText(parts.shed, shed ? `${rate(shed)} rejected/s` : "");
      parts.shedLine.style.display = shed ? "" : "none";
    });
  }
}

const processText = ({ processes }) => (processes === 1 ? "1 process" : `${count(processes)} processes`);

// A line moves faster with its rate, on a logarithmic scale, and stands still without one.
function moveLine(line, perSecondValue) {
  line.style.display = perSecondValue > 0 ? "" : "none";
  const seconds = clamp(2 / (1 + Math.log10(1 + perSecondValue)), 0.25, 2).toFixed(1);
  if (line.style.animationDuration !== `${seconds}s`) line.style.animationDuration = `${seconds}s`;
}

let flow = null;

function drawFlow(frame) {
  const place = query("#flow .picture");
  const isNarrow = place.clientWidth < NARROW_PX;
  if (!flow || flow.isNarrow !== isNarrow) {
    flow = new Flow(isNarrow);
    place.replaceChildren(flow.node);
  }
  flow.draw(frame);
}
