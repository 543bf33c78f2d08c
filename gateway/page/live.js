// Asks for the server's state every second and shows it. Texts of the server only ever become text.
const INTERVAL_MS = 1000, RETRY_MS_MAX = 5000;
const RATE_SECONDS = 10, LATENCY_SECONDS = 60, HISTORY_SECONDS = 120, ROW_SECONDS = 60, SPARK_SECONDS_MIN = 15;
const STATES = { READY: ["good", "ready"], LOADING: ["busy", "loading"], UNLOADING: ["busy", "unloading"] };

const at = (id) => document.getElementById(id);
const rows = new Map();
let states = []; // the last two minutes, oldest first
let failures = 0;

async function ask() {
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (answer.status === 403) return restricted();
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    remember(await answer.json());
    failures = 0;
    show();
  } catch {
    failures += 1;
    pill(at("state"), "waiting", "reconnecting");
    document.title = "… naiad";
  }
  document.body.classList.toggle("stale", failures > 0);
  setTimeout(ask, Math.min(INTERVAL_MS * (failures || 1), RETRY_MS_MAX));
}

// The operator shows this to nobody without a secret, which a browser does not have.
function restricted() {
  pill(at("state"), "bad", "restricted");
  for (const part of document.querySelectorAll(".tiles, table")) part.hidden = true;
  at("none").hidden = false;
  at("none").textContent = "This server tells its state only to who knows a secret. Beside it, naiad status tells it.";
}

function remember(state) {
  state.models = new Map(state.models.map((one) => [`${one.name}\n${one.version}`, one]));
  const last = states.at(-1);
  if (last && last.server.started !== state.server.started) states = []; // counts begin anew
  if (last && last.time >= state.time) states.pop();
  states.push(state);
  states = states.filter((one) => one.time >= state.time - HISTORY_SECONDS - 2);
}

// --- what follows from the counts ---

const asked = (one) => (one?.succeeded ?? 0) + (one?.failed ?? 0);

function before(seconds) {
  const now = states.at(-1);
  return states.find((one) => one.time >= now.time - seconds - 0.5) ?? now;
}

// How fast something grew; a model that was loaded again begins at 0.
function growth(earlier, later, key, count) {
  const past = earlier.models.get(key), seconds = later.time - earlier.time;
  if (!past || seconds <= 0) return 0;
  return Math.max(0, count(later.models.get(key)) - count(past)) / seconds;
}

// [seconds ago, requests per second] for as long as this.
function rates(seconds, keys) {
  const end = states.at(-1).time, chosen = states.filter((one) => one.time >= end - seconds - 0.5);
  return chosen.slice(1).map((one, index) =>
    [end - one.time, keys.reduce((sum, key) => sum + growth(chosen[index], one, key, asked), 0)]);
}

// The times of the last minute; of all time when there was nothing in it.
function times(key) {
  const all = states.at(-1).models.get(key)?.request_times;
  if (!all) return null;
  const past = before(LATENCY_SECONDS).models.get(key)?.request_times;
  const recent = past ? all.map((count, index) => count - past[index]) : all;
  return recent.some((count) => count > 0) && recent.every((count) => count >= 0) ? recent : all;
}

function sum(lists) {
  return lists.length ? lists[0].map((_, index) => lists.reduce((total, one) => total + one[index], 0)) : null;
}

function quantile(counts, share) {
  const total = counts?.reduce((one, other) => one + other, 0);
  if (!total) return null;
  const bounds = states.at(-1).time_bounds;
  let left = share * total;
  for (let index = 0; index < bounds.length; index += 1) {
    if (left <= counts[index]) {
      const low = index ? bounds[index - 1] : 0;
      return low + (bounds[index] - low) * (left / counts[index]);
    }
    left -= counts[index];
  }
  return Infinity;
}

// --- as text ---

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds === Infinity) return `> ${states.at(-1).time_bounds.at(-1)} s`;
  if (seconds >= 1) return `${seconds.toPrecision(2)} s`;
  const ms = seconds * 1000;
  return `${ms >= 100 ? Math.round(ms / 10) * 10 : ms >= 10 ? Math.round(ms) : ms.toFixed(1)} ms`;
}

function number(value) {
  if (value >= 10000) return `${(value / 1000).toFixed(value >= 100000 ? 0 : 1)} k`;
  return value >= 10 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

function age(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}

function pill(element, state, text) {
  element.dataset.state = state;
  element.textContent = text;
}

function figure(element, text, isZero, isTrouble) {
  element.textContent = text;
  element.classList.toggle("zero", isZero);
  element.classList.toggle("trouble", Boolean(isTrouble));
}

// The newest is at the right; what it spans grows with what is known, from a few seconds on.
function spark(svg, points) {
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const span = Math.max(points[0]?.[0] ?? 0, SPARK_SECONDS_MIN), top = Math.max(1, ...points.map(([, rate]) => rate));
  const line = points.length < 2 || points.every(([, rate]) => rate === 0) ? "" : "M" + points.map(([ago, rate]) =>
    `${(width * (1 - ago / span)).toFixed(1)},${(height - 1 - (rate / top) * (height - 4)).toFixed(1)}`).join("L");
  svg.querySelector(".line").setAttribute("d", line);
  svg.querySelector(".area").setAttribute("d", line && `${line}V${height}H${(width * (1 - points[0][0] / span)).toFixed(1)}Z`);
}

// --- the page ---

function show() {
  const now = states.at(-1), { server } = now, models = [...now.models];
  const wanted = models.filter(([, one]) => one.reason !== "unloaded");
  const ready = wanted.filter(([, one]) => one.ready).length;
  const all = sum(models.map(([key]) => times(key)).filter(Boolean)), keys = [...now.models.keys()];
  const earlier = before(RATE_SECONDS), isFirst = earlier === now;
  const rate = keys.reduce((total, key) => total + growth(earlier, now, key, asked), 0);
  const failing = keys.reduce((total, key) => total + growth(earlier, now, key, (one) => one.failed ?? 0), 0);
  const waiting = models.reduce((total, [, one]) => total + (one.pending ?? 0), 0);

  at("name").textContent = server.name;
  at("about").textContent = `naiad ${server.version}, up ${age(server.up)}`;
  if (server.phase === "draining") pill(at("state"), "busy", "stopping");
  else if (server.ready) pill(at("state"), "good", "ready");
  else if (server.phase === "serving") pill(at("state"), "bad", "not ready");
  else pill(at("state"), "busy", server.phase);
  document.title = `${server.ready ? "" : "! "}${server.name}: ${number(rate)}/s`;

  figure(at("rate"), isFirst ? "–" : number(rate), rate === 0);
  figure(at("median"), duration(quantile(all, 0.5)), !all);
  figure(at("p99"), duration(quantile(all, 0.99)), !all);
  figure(at("waiting"), number(waiting), waiting === 0);
  figure(at("failures"), isFirst ? "–" : number(failing), failing === 0, failing > 0);
  figure(at("serving"), `${ready} of ${wanted.length}`, false, ready < wanted.length && server.phase === "serving");
  spark(at("history"), rates(HISTORY_SECONDS, keys));
  at("none").hidden = models.length > 0;
  document.querySelector("table").hidden = models.length === 0;

  for (const [key, row] of rows) {
    if (!now.models.has(key)) { row.remove(); rows.delete(key); }
  }
  models.forEach(([key, one], index) => {
    if (!rows.has(key)) rows.set(key, at("row").content.firstElementChild.cloneNode(true));
    const row = rows.get(key);
    if (at("models").children[index] !== row) at("models").insertBefore(row, at("models").children[index] ?? null);
    showModel(row, key, one, earlier);
  });
}

function showModel(row, key, one, earlier) {
  const part = (name) => row.querySelector(`.${name}`);
  const isUnloaded = one.reason === "unloaded";
  let [state, word] = STATES[one.state] ?? (isUnloaded ? ["idle", "unloaded"] : ["bad", "unavailable"]);
  if (one.state === "READY" && !one.ready) [state, word] = ["bad", "not ready"];
  row.dataset.state = state;
  row.classList.toggle("unknown", !one.request_times);
  part("name").textContent = one.name;
  part("version").textContent = one.version && `version ${one.version}`;
  part("reason").textContent = isUnloaded ? "" : one.reason;
  pill(part("pill"), state, word);

  const now = states.at(-1), counts = times(key), instances = one.instances ?? [];
  const rate = growth(earlier, now, key, asked);
  figure(part("rate"), earlier === now ? "–" : number(rate), rate === 0);
  spark(row.querySelector(".spark"), rates(ROW_SECONDS, [key]));
  figure(part("median"), duration(quantile(counts, 0.5)), !asked(one));
  figure(part("p99"), duration(quantile(counts, 0.99)), !asked(one));
  figure(part("pending"), number(one.pending ?? 0), !one.pending);
  part("pending").title = one.oldest_pending ? `the oldest for ${duration(one.oldest_pending)}` : "";
  figure(part("executing"), number(one.executing ?? 0), !one.executing);
  figure(part("failed"), number(one.failed ?? 0), !one.failed, growth(earlier, now, key, (it) => it.failed ?? 0) > 0);
  const restarts = instances.reduce((total, it) => total + it.restarts, 0);
  figure(part("restarts"), number(restarts), restarts === 0);

  const squares = part("squares"), shown = instances.slice(0, 16);
  while (squares.children.length > shown.length) squares.lastChild.remove();
  while (squares.children.length < shown.length) squares.append(document.createElement("i"));
  shown.forEach((it, index) => squares.children[index].classList.toggle("down", !it.serves));
  const serving = instances.filter((it) => it.serves).length;
  const busy = growth(earlier, now, key, (it) => (it?.instances ?? []).reduce((total, i) => total + i.busy, 0));
  const share = serving ? `, ${Math.min(100, Math.round((100 * busy) / serving))}% busy` : "";
  part("busy").textContent = instances.length ? `${serving} of ${instances.length}${share}` : "–";
}

ask();
