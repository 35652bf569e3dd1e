"use strict";
// Charts of the last minutes, from frames that this page has received.

const MAX_POINTS = 180;
const CHART = { width: 180, height: 40 };

class Chart {
  // `valueOf` returns the value of a frame; null if no process that counts it is polled.
  constructor(name, valueOf) {
    this.valueOf = valueOf;
    this.values = [];
    this.value = element("span", { class: "value" });
    this.line = shape("polyline");
    this.area = shape("polygon");
    const picture = shape("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, preserveAspectRatio: "none" });
    picture.append(this.area, this.line);
    this.node = element("div", { class: "chart" }, this.value, element("span", { class: "name" }, name), picture);
  }

  add(frame) {
    const value = this.valueOf(frame);
    setText(this.value, value === null ? "–" : rate(value));
    this.values = [...this.values, value || 0].slice(-MAX_POINTS);
    const points = chartPoints(this.values);
    this.line.setAttribute("points", points.join(" "));
    this.area.setAttribute("points", [`0,${CHART.height}`, ...points, `${CHART.width},${CHART.height}`].join(" "));
  }
}

// The newest value is at the right border; the highest value touches the upper one.
function chartPoints(values) {
  const highest = Math.max(1e-9, ...values);
  const step = CHART.width / Math.max(1, values.length - 1);
  return values.map((value, place) => {
    const x = CHART.width - (values.length - 1 - place) * step;
    return `${x.toFixed(1)},${(CHART.height - 1 - (CHART.height - 3) * (value / highest)).toFixed(1)}`;
  });
}

const tierOf = (frame, tier) => frame.tiers.find((row) => row.tier === tier);
const perSecond = (frame, tier) => (tierOf(frame, tier) ? tierOf(frame, tier).per_second : null);

const charts = [
  new Chart("requests/s", (frame) => perSecond(frame, "edge")),
  new Chart("waiting", (frame) => sum(frame.shards, (row) => row.waiting)),
  new Chart("running", (frame) => sum(frame.workers, (row) => row.running)),
  new Chart("output tokens/s", (frame) => perSecond(frame, "worker")),
  new Chart("rejected/s", (frame) => sum(frame.sheds, (row) => row.per_second)),
];

function drawCharts(frame) {
  const place = query("#flow .charts");
  if (!place.children.length) place.append(...charts.map((chart) => chart.node));
  charts.forEach((chart) => chart.add(frame));
}
