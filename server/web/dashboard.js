"use strict";
// The dashboard: reads /api/events, draws what they say, and talks to the API as any client would.
// Nothing is loaded from elsewhere; texts of models and files are never read as HTML.

const $ = (id) => document.getElementById(id);
const SECONDS = 300;
const history = [];  // {time, pace, promptPace}
let last = null;
let key = sessionStorage.getItem("spillway-key") || "";

const headers = (more = {}) => (key ? { ...more, Authorization: `Bearer ${key}` } : more);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; ++unit; }
  return `${count >= 100 || unit === 0 ? count.toFixed(0) : count.toFixed(1)} ${units[unit]}`;
}

const rate = (value) => (value === null || value === undefined ? "–" : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

function seconds(value) {
  if (value < 1) return `${rate(1000 * value)} ms`;
  if (value < 60) return `${rate(value)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(value % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const counted = (count, thing) => `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;

function badge(text, kind) {
  const state = $("state");
  state.className = `badge ${kind}`;
  if (state.textContent !== text) state.textContent = text;
}

// ---- What the events say ------------------------------------------------------------------------

function show(event) {
  $("model").textContent = `${event.model}, ${event.positions} positions, version ${event.version}`;
  badge(event.healthy ? "running" : event.detail || "in trouble", event.healthy ? "good" : "bad");
  let pace = null, promptPace = null;
  if (last && event.now > last.now && event.generated_tokens >= last.generated_tokens) {
    const span = event.now - last.now;
    pace = (event.generated_tokens - last.generated_tokens) / span;
    promptPace = (event.prompt_tokens - last.prompt_tokens) / span;
  }
  history.push({ time: event.now, pace, promptPace });
  while (history.length && history[0].time < event.now - SECONDS) history.shift();
  last = event;
  // Tokens come a pass at a time, so the figure is of the last ten seconds.
  const recent = history.filter((entry) => entry.pace !== null && entry.time > event.now - 10);
  const mean = (name) => (recent.length ? recent.reduce((sum, entry) => sum + entry[name], 0) / recent.length : null);
  $("pace").textContent = rate(mean("pace"));
  $("prompt-pace").textContent = rate(mean("promptPace"));
  $("pace-predicted").textContent = rate(event.predicted);
  drawPace(event);
  drawQueue(event);
  drawTiers(event.tiers);
  drawSweep(event.sweep);
  drawBatches(event.batches);
  $("plan").textContent = event.plan;
}

function drawPace(event) {
  const svg = $("pace-chart"), width = Math.max(240, svg.clientWidth), height = 160, left = 44, bottom = 18;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const points = history.filter((entry) => entry.pace !== null);
  const top = Math.max(1e-6, event.predicted || 0, ...points.map((entry) => entry.pace)) * 1.1;
  const x = (time) => left + (width - left) * (1 - (event.now - time) / SECONDS);
  const y = (value) => (height - bottom) * (1 - value / top) + 2;
  for (const part of [0, 0.5, 1]) {
    const value = top * part / 1.1;
    svg.append(shape("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }),
               shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, rate(value)));
  }
  for (const minutes of width < 500 ? [4, 2] : [4, 3, 2, 1]) {
    svg.append(shape("text", { x: x(event.now - 60 * minutes), y: height - 3, "text-anchor": "middle" }, `${minutes} min ago`));
  }
  if (event.predicted) {
    svg.append(shape("line", { class: "predicted", x1: left, x2: width, y1: y(event.predicted), y2: y(event.predicted) }));
  }
  if (points.length > 1) {
    svg.append(shape("polyline", { class: "line", points: points.map((entry) => `${x(entry.time).toFixed(1)},${y(entry.pace).toFixed(1)}`).join(" ") }));
  } else if (event.generated_tokens === 0) {
    svg.append(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing generated yet"));
  }
}

function drawQueue(event) {
  const rows = [["running", event.running], ["waiting", event.waiting]];
  if (event.set_aside) rows.push(["times set aside for older ones", event.set_aside]);
  $("queue").replaceChildren(...rows.map(([name, count]) => {
    const row = element("tr");
    row.append(element("td", name), element("td", count.toLocaleString("en"), { class: "number" }));
    return row;
  }));
  const { used, prefix, total } = event.kv;
  const bar = $("kv");
  bar.replaceChildren();
  if (total > 0) {
    const span = element("span", undefined, { class: "k0" });
    span.style.width = `${100 * Math.min(1, used / total)}%`;
    bar.append(span);
  }
  const text = `${bytes(used)} of ${bytes(total)} in use; ${bytes(prefix)} hold beginnings of prompts`;
  bar.setAttribute("aria-label", text);
  $("kv-text").textContent = text;
}

const KINDS = ["weights", "kv", "activations", "staging"];
const KIND_NAMES = { weights: "weights", kv: "KV cache", activations: "activations", staging: "buffers" };

function drawTiers(tiers) {
  const names = [...new Set(tiers.map((entry) => entry.tier))];
  const of = (tier, kind) => tiers.filter((entry) => entry.tier === tier && entry.kind === kind).reduce((sum, entry) => sum + entry.bytes, 0);
  const all = (tier) => KINDS.reduce((sum, kind) => sum + of(tier, kind), 0);
  const largest = Math.max(1, ...names.map(all));
  $("tiers").replaceChildren(...names.filter((tier) => all(tier) > 0).flatMap((tier) => {
    const bar = element("div", undefined, { class: "bar", role: "img", "aria-label": `${tier}: ${KINDS.filter((kind) => of(tier, kind)).map((kind) => `${KIND_NAMES[kind]} ${bytes(of(tier, kind))}`).join(", ")}` });
    KINDS.forEach((kind, number) => {
      const span = element("span", undefined, { class: `k${number}`, title: `${KIND_NAMES[kind]} ${bytes(of(tier, kind))}` });
      span.style.width = `${100 * of(tier, kind) / largest}%`;
      bar.append(span);
    });
    return [element("h3", `${tier}, ${bytes(all(tier))}`), bar];
  }));
  $("tiers-legend").replaceChildren(...KINDS.flatMap((kind, number) => [element("i", undefined, { class: `k${number}` }), document.createTextNode(KIND_NAMES[kind])]));
}

let drawnSweep = null;
function drawSweep(sweep) {
  if (!sweep || sweep.number === drawnSweep) return;
  drawnSweep = sweep.number;
  const waits = sweep.waits.filter((wait) => wait.seconds > 0.001 * sweep.seconds).map((wait) => `${wait.name} ${seconds(wait.seconds)}`);
  $("sweep-text").textContent = `Pass ${sweep.number} took ${seconds(sweep.seconds)}: ${counted(sweep.decoding, "sequence")} went on, ${counted(sweep.prompt_tokens, "prompt token")} read. ` +
    (waits.length ? `It stood still for ${waits.join(", ")}.` : "It never stood still.");
  const svg = $("sweep-chart"), width = Math.max(240, svg.clientWidth), left = 96, row = 28;
  svg.setAttribute("viewBox", `0 0 ${width} ${row * sweep.tracks.length + 20}`);
  svg.replaceChildren();
  sweep.tracks.forEach((track, number) => {
    const y = row * number;
    svg.append(shape("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, track.name),
               shape("rect", { class: "track", x: left, y, width: width - left, height: row - 8 }));
    for (const [from, to] of track.spans) {
      svg.append(shape("rect", { class: `s${number % 5}`, x: left + (width - left) * from / sweep.seconds, y,
                                 width: Math.max(0.5, (width - left) * (to - from) / sweep.seconds), height: row - 8 }));
    }
  });
  const bottom = row * sweep.tracks.length + 12;
  svg.append(shape("text", { x: left, y: bottom }, "0 s"), shape("text", { x: width, y: bottom, "text-anchor": "end" }, seconds(sweep.seconds)));
}

// ---- Batches ------------------------------------------------------------------------------------

async function download(id, name) {
  const answer = await fetch(`/v1/files/${id}/content`, { headers: headers() });
  if (!answer.ok) return;
  const link = element("a", undefined, { href: URL.createObjectURL(await answer.blob()), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function button(text, label, action) {
  const made = element("button", text, { type: "button", "aria-label": label });
  made.addEventListener("click", action);
  return made;
}

let drawnBatches = "";
function drawBatches(batches) {
  if (!batches) { $("upload-form").closest("section").hidden = true; return; }
  const text = JSON.stringify(batches);
  if (text === drawnBatches) return;  // Buttons keep the focus.
  drawnBatches = text;
  if (!batches.length) return;
  $("batches").replaceChildren(...batches.map((batch) => {
    const row = element("tr"), counts = batch.request_counts;
    const done = counts.completed + counts.failed;
    const results = element("td"), actions = element("td");
    if (batch.output_file_id) results.append(button("answers", `Download the answers of ${batch.id}`, () => download(batch.output_file_id, `${batch.id}_output.jsonl`)), " ");
    if (batch.error_file_id) results.append(button("errors", `Download the errors of ${batch.id}`, () => download(batch.error_file_id, `${batch.id}_error.jsonl`)));
    if (batch.errors) results.append(element("span", batch.errors.data.slice(0, 3).map((fault) => `line ${fault.line ?? "–"}: ${fault.message}`).join(" "), { class: "error" }));
    if (["validating", "in_progress", "finalizing"].includes(batch.status)) {
      actions.append(button("Cancel", `Cancel ${batch.id}`, () => fetch(`/v1/batches/${batch.id}/cancel`, { method: "POST", headers: headers() })));
    }
    row.append(element("td", batch.id), element("td", batch.x_status_detail ? `${batch.status}: ${batch.x_status_detail}` : batch.status),
               element("td", counts.total ? `${done} of ${counts.total}${counts.failed ? `, ${counts.failed} failed` : ""}` : "–"), results, actions);
    return row;
  }));
}

$("upload-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const state = $("upload-state");
  state.textContent = "Uploading …";
  try {
    const form = new FormData();
    form.append("purpose", "batch");
    form.append("file", $("file").files[0]);
    const sent = await fetch("/v1/files", { method: "POST", headers: headers(), body: form });
    const file = await sent.json();
    if (!sent.ok) throw new Error(file.error.message);
    const asked = await fetch("/v1/batches", {
      method: "POST", headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify({ input_file_id: file.id, endpoint: $("endpoint").value, completion_window: "7d" }) });
    const batch = await asked.json();
    if (!asked.ok) throw new Error(batch.error.message);
    state.textContent = `${batch.id} is under way.`;
    $("upload-form").reset();
  } catch (error) {
    state.textContent = error.message;
  }
});

// ---- Server-sent events -------------------------------------------------------------------------

// Calls `take` with the data of each event; EventSource cannot send a key.
async function readEvents(answer, take) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const event = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      if (event.startsWith("data: ") && event !== "data: [DONE]") take(JSON.parse(event.slice(6)));
    }
  }
}

async function follow() {
  for (let pause = 1; ; pause = Math.min(30, 2 * pause)) {
    try {
      const answer = await fetch("/api/events", { headers: headers() });
      if (answer.status === 401) {
        badge("asks for a key", "warn");
        $("key-form").hidden = false;
        if (key) $("key-error").textContent = "That is not one of its keys.";
        $("key").focus();
        return;
      }
      if (answer.ok) {
        $("key-form").hidden = true;
        pause = 1;
        await readEvents(answer, show);
      } else {
        const body = await answer.json();
        badge(body.error.code === "model_loading" ? "loading the model" : body.error.message, "warn");
        pause = 1;
      }
    } catch (error) {
      // The server is gone or the network is; try again.
    }
    if ($("state").classList.contains("good")) badge("disconnected", "bad");
    await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
  }
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value;
  sessionStorage.setItem("spillway-key", key);
  follow();
});

// ---- The playground -----------------------------------------------------------------------------

let running = null;

function addToken(text, logprob) {
  const probability = Math.exp(logprob);
  const level = probability > 0.6 ? 5 : probability > 0.3 ? 4 : probability > 0.15 ? 3 : probability > 0.05 ? 2 : probability > 0.01 ? 1 : 0;
  $("answer").append(element("span", text, { class: `p${level}`, title: `${(100 * probability).toFixed(1)} %` }));
}

$("play-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  running?.abort();
  const mine = running = new AbortController();
  const chat = $("as-chat").checked;
  const body = { max_tokens: Number($("tokens").value), temperature: Number($("temperature").value), stream: true, timings_per_token: true };
  if (chat) Object.assign(body, { messages: [{ role: "user", content: $("prompt").value }], logprobs: true });
  else Object.assign(body, { prompt: $("prompt").value, logprobs: 0 });
  $("answer").replaceChildren();
  $("play-state").textContent = "Waiting for the first token …";
  $("play-stop").disabled = false;
  try {
    const answer = await fetch(chat ? "/v1/chat/completions" : "/v1/completions", {
      method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal: mine.signal });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    let timings = null;
    await readEvents(answer, (chunk) => {
      if (chunk.error) throw new Error(chunk.error.message);
      timings = chunk.timings || timings;
      for (const choice of chunk.choices) {
        const text = chat ? choice.delta.content || "" : choice.text;
        const scores = chat ? choice.logprobs?.content.map((token) => token.logprob) : choice.logprobs?.token_logprobs;
        if (text) addToken(text, scores?.length ? scores[scores.length - 1] : 0);
      }
      if (timings) $("play-state").textContent = `${timings.predicted_n} tokens, ${rate(timings.predicted_per_second)} a second; the first after ${seconds((timings.queue_ms + timings.prompt_ms) / 1000)}`;
    });
  } catch (error) {
    $("play-state").textContent = error.name === "AbortError" ? "Stopped." : error.message;
  }
  if (running === mine) { $("play-stop").disabled = true; running = null; }
});
$("play-stop").addEventListener("click", () => running?.abort());

follow();
