"use strict";
// Asks the page's server for frames and draws them. The token comes from the address, after the hash, or from the form.

const TOKEN_KEY = "penstock-token";
const RETRY_S = 2; // after a frame that failed

let isPaused = false;
let timer = 0;
let lastFrame = null;

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  sessionStorage.setItem(TOKEN_KEY, given);
  history.replaceState(null, "", location.pathname);
}

async function fetchFrame() {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch("frame", { headers, cache: "no-store", credentials: "omit" });
  if (response.ok) return response.json();
  const { error } = await response.json();
  const retryAfter = response.headers.get("retry-after");
  throw Object.assign(new Error(error.message), { reason: error.reason, retryAfter });
}

function draw(frame) {
  lastFrame = frame;
  drawFlow(frame);
  drawQueue(frame);
  drawWorkers(frame);
  drawRequests(frame);
  drawProcesses(frame);
}

function showStatus(text, isBad) {
  const status = query("#status");
  setText(status, text);
  status.classList.toggle("bad", isBad);
  query("main").classList.toggle("stale", isBad);
}

function showLogin(text) {
  query("main").hidden = true;
  query("#login").hidden = false;
  setText(query("#login-error"), text);
  showStatus("a token is needed", true);
}

async function refresh() {
  clearTimeout(timer);
  let delay = RETRY_S;
  try {
    const frame = await fetchFrame();
    query("#login").hidden = true;
    query("main").hidden = false;
    drawCharts(frame);
    draw(frame);
    showStatus(`live, ${new Date(1e3 * frame.time).toLocaleTimeString()}`, false);
    delay = frame.interval_s;
  } catch (error) {
    if (error.reason === "ADMIN_ONLY") {
      showLogin(sessionStorage.getItem(TOKEN_KEY) ? "This token is not accepted." : "");
      return;
    }
    showStatus(`no frame: ${error.message}`, true);
    delay = Number(error.retryAfter) || RETRY_S;
  }
  if (!isPaused && !document.hidden) timer = setTimeout(refresh, 1e3 * delay);
}

query("#pause").addEventListener("click", (event) => {
  isPaused = !isPaused;
  event.target.textContent = isPaused ? "Go on" : "Pause";
  event.target.setAttribute("aria-pressed", String(isPaused));
  clearTimeout(timer);
  if (isPaused) setText(query("#status"), `paused, ${query("#status").textContent}`);
  else refresh();
});

query("#login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN_KEY, query("#token").value.trim());
  query("#token").value = "";
  refresh();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !isPaused && query("#login").hidden) refresh();
});

addEventListener("resize", () => {
  if (!lastFrame) return;
  draw(lastFrame);
  drawWaterfall();
});

takeToken();
refresh();
