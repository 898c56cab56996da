"use strict";
const $ = (id) => document.getElementById(id);
const SHOWN = 10, SNIPPET = 300;
let token = "";        // in memory only
let info = null;
let picked = null;     // the question as the service has it, while its text is unchanged
let generated = null;  // {lines, plan}: a generated plan, until its lines are edited
let turn = 0;          // the newest request; answers of older ones are dropped

async function ask(path, body) {
  const headers = token ? { Authorization: "Bearer " + token } : {};
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  if (answer.status === 401) { $("gate").hidden = false; $("main").hidden = true; $("about").textContent = ""; }
  throw new Error(content.detail || `The service answered ${answer.status}.`);
}

// Every text becomes a text node: nothing that a document or an error says is ever read as HTML.
function element(tag, ...content) {
  const made = document.createElement(tag);
  made.append(...content);
  return made;
}

async function attempt(work) {
  const mine = ++turn;
  $("error").hidden = true;
  try {
    await work(() => mine === turn);
  } catch (error) {
    if (mine !== turn) return;
    $("status").textContent = "";
    $("error").textContent = error.message;
    $("error").hidden = false;
  }
}

const connect = () => attempt(async () => {
  const [environment, api] = await Promise.all([ask("/v1/environment"), ask("/v1/openapi.json")]);
  info = environment;
  $("gate").hidden = true;
  $("main").hidden = false;
  $("about").textContent = `${info.name} · ${info.retriever.name} · ${info.corpus_size.toLocaleString("en")} documents`;
  $("split").replaceChildren(...Object.keys(info.splits).map((name) => element("option", name)));
  $("split").value = ["test", "validation"].find((name) => name in info.splits) || $("split").value;
  $("generate").hidden = !api.paths["/v1/ask"];
  $("modes").hidden = !info.retriever.query_language;
  $("mode").title = info.retriever.query_language || "";
  if ($("split").value) pick();
});

async function pick() {
  const split = $("split").value, total = info.splits[split];
  const number = Math.min(Math.max(1, Math.trunc($("number").value) || 1), total);
  $("number").value = number;
  $("number").max = total;
  await attempt(async (current) => {
    const page = await ask(`/v1/questions?split=${encodeURIComponent(split)}&offset=${number - 1}&limit=1`);
    if (!current()) return;
    picked = page.questions[0];
    $("question").value = picked.text;
    $("rewrite").value = "";
  });
  if (picked) await compare();
}

const isNative = () => $("mode").value === "native";

// "text ^0.7 | other ^-0.3" → terms; \| is a bar. A native query is the line as it stands.
function terms(line) {
  if (isNative()) return line.trim() ? [{ text: line.trim(), weight: 1 }] : [];
  return line.split(/(?<!\\)\|/).map((part) => {
    const match = /^(.*?)\s*\^([+-]?(?:\d+\.?\d*|\.\d+))\s*$/.exec(part);
    const text = (match ? match[1] : part).replaceAll("\\|", "|").trim();
    return { text, weight: match ? Number(match[2]) : 1 };
  }).filter((term) => term.text);
}

const lineOf = (probe) => probe.terms.map((term) => {
  const line = term.text.replace(/\s+/g, " "), text = isNative() ? line : line.replaceAll("|", "\\|");
  return term.weight === 1 ? text : `${text} ^${term.weight}`;
}).join(" | ");

function rewritePlan(k) {
  const lines = $("rewrite").value, mode = $("mode").value;
  const same = generated && generated.lines === lines && generated.plan.mode === mode;
  const probes = same ? generated.plan.probes
    : lines.split("\n").map((line) => ({ terms: terms(line) })).filter((probe) => probe.terms.length);
  return probes.length ? { probes, fuse: $("fuse").value, k, mode } : null;
}

const compare = () => attempt(async (current) => {
  const text = $("question").value.trim(), k = Number($("k").value);
  if (!text) { $("status").textContent = "Type a question or pick one."; return; }
  const raw = { probes: [{ terms: [{ text, weight: 1 }] }], fuse: "max", k };
  const plan = rewritePlan(k), plans = plan ? [raw, plan] : [raw], asked = picked;
  $("status").textContent = "Searching…";
  const { results: found } = asked
    ? await ask("/v1/step", { steps: plans.map((one) => ({ question_id: asked.id, plan: one })), with_text: true })
    : await ask("/v1/search", { plans });
  if (!current()) return;
  $("results").hidden = false;
  show("raw", found[0]);
  show("new", found[1], found[0]);
  $("plan").textContent = JSON.stringify(plan || raw, null, 2);
  $("status").textContent = asked ? `Question ${asked.id}` : "A question of your own has no score.";
});

function show(side, result, before) {
  const places = before && new Map(before.ranking.map((hit, i) => [hit.id, i + 1]));
  const { reward, hits = null, error } = result || {};
  $(`${side}-score`).textContent = [reward !== undefined && `nDCG@10 ${reward.toFixed(3)}`,
    error ? `refused: ${error}` : hits !== null && `${hits} hits`].filter(Boolean).join(" · ");
  $(`${side}-hits`).replaceChildren(...(result ? result.ranking : []).slice(0, SHOWN).map((hit, i) => {
    const was = places && (places.get(hit.id) || "–");
    return element("li", element("strong", hit.title || hit.id), " ",
      element("small", `${hit.id} · ${Number(hit.score.toPrecision(5))}${was && was !== i + 1 ? ` · was ${was}` : ""}`),
      element("div", hit.text.length > SNIPPET ? hit.text.slice(0, SNIPPET) + "…" : hit.text));
  }));
}

const generate = () => attempt(async (current) => {
  const { options = [], history = [] } = picked || {};
  $("status").textContent = "Generating…";
  const { answers: [{ turns }] } = await ask("/v1/ask",
    { questions: [{ text: $("question").value.trim(), options, history }] });
  if (!current()) return;
  const rewrite = turns.at(-1);
  $("mode").value = rewrite.plan.mode;
  $("rewrite").value = rewrite.plan.probes.map(lineOf).join("\n");
  $("fuse").value = rewrite.plan.fuse;
  generated = { lines: $("rewrite").value, plan: rewrite.plan };
  await compare();
  if (rewrite.failure) $("status").textContent = `The question itself: the answer did not keep the format (${rewrite.error || rewrite.failure}).`;
});

$("gate").addEventListener("submit", (event) => { event.preventDefault(); token = $("token").value.trim(); connect(); });
$("form").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
$("question").addEventListener("input", () => { picked = null; });
$("split").addEventListener("change", () => { $("number").value = 1; pick(); });
$("number").addEventListener("change", pick);
$("generate").addEventListener("click", generate);
connect();
