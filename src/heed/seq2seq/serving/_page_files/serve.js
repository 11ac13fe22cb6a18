// The page of a server: translates text as you type, and draws the attention of the model below.

const about = JSON.parse($("about").textContent);
const PAUSE = 150; // milliseconds after the last key until the text is sent

let drawn = null;   // the result of `show`, while there is a drawing
let kept = {};      // the user's choices in the last drawing
let staged = 0;     // the number of requested drawings; only the last is shown
let pending = null; // the request in progress; a newer one aborts it, so no stale answer is shown
let timer = 0;
let found = [];     // the listed translations
let copied = 0;     // the timer that ends "Copied"

function problem(text) {
  $("problem").textContent = text.charAt(0).toUpperCase() + text.slice(1);
  $("problem").hidden = !text;
  update();
}

function clear() {
  found = [];
  $("translations").replaceChildren();
  stage(null);
  update();
}

// Shows what belongs to the state of the page.
function update() {
  $("nothing").hidden = found.length > 0 || !$("problem").hidden || pending !== null;
  $("copy").hidden = found.length === 0;
  $("welcome").hidden = found.length > 0;
}

// Replaces the drawing; the user's choices stay.
async function stage(attention) {
  const turn = ++staged, data = attention && await unpack(attention);
  if (turn !== staged) return;
  if (drawn) {
    kept = drawn.kept();
    drawn.end();
  }
  drawn = null;
  $("stage").replaceChildren();
  if (!data) return;
  $("stage").append($("view").content.cloneNode(true));
  drawn = show(data, kept);
}

function list(translations) {
  found = translations;
  $("translations").replaceChildren(...found.map((one, i) => element("li", {
    textContent: formatToken(one.text), title: one.score === undefined ? "" : `score ${one.score.toFixed(2)}`,
    dir: "auto", tabIndex: i === 0 ? 0 : -1, role: "option", "aria-selected": String(i === 0), "data-i": i,
  })));
}

// The first pieces of a translation, before all of it is there.
function write(text) {
  if (found.length !== 1 || found[0].attention || $("answer").classList.contains("stale")) list([{ text }]);
  found[0].text = text;
  $("translations").firstChild.textContent = formatToken(text);
  $("answer").classList.remove("stale");
  $("answer").classList.add("writing");
  update();
}

// The server-sent events of an answer: pairs of a name and its data.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [, name] = /^event: (.*)$/m.exec(part) || [, "piece"];
      yield [name, JSON.parse(/^data: (.*)$/m.exec(part)[1])];
    }
  }
}

// The result of a request. A translation without alternatives comes in pieces.
async function ask(body, mine) {
  const answer = await fetch("translate", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: mine.signal,
  });
  if (!answer.ok) throw new Error(String((await answer.json()).detail).replace(/^texts\.0: /, ""));
  if (!body.stream) return answer.json();
  let text = "";
  for await (const [name, data] of events(answer)) {
    if (mine !== pending) return null;
    if (name === "end") return data;
    if (name === "error") throw new Error(data.detail);
    write((text += data.piece));
  }
  throw new TypeError("the answer has no end");
}

function choose(i) {
  [...$("translations").children].forEach((item, at) => {
    item.setAttribute("aria-selected", at === i);
    item.tabIndex = at === i ? 0 : -1;
  });
  stage(found[i].attention);
}

function finish() {
  pending = null;
  $("answer").setAttribute("aria-busy", "false");
  $("answer").classList.remove("stale", "writing");
  update();
}

async function translate() {
  const text = $("text").value, beams = +$("beams").value;
  if (pending) pending.abort();
  $("state").textContent = "";
  if (!text.trim()) {
    finish();
    problem("");
    return clear();
  }
  const mine = (pending = new AbortController()), body = { texts: [text], run: $("run").value, attention: true };
  problem("");
  if (beams > 1) Object.assign(body, { beam_size: beams, n_best: beams });
  else body.stream = true;
  if ($("language").value) body.language = $("language").value;
  $("answer").setAttribute("aria-busy", "true");
  $("answer").classList.add("stale");
  const begin = performance.now();
  try {
    const result = await ask(body, mine);
    if (mine !== pending) return;
    const [one] = result.translations;
    list(one.hypotheses || [one]);
    $("state").textContent = `Translated in ${Math.round(performance.now() - begin)} ms`;
    await stage(found[0].attention);
  } catch (error) {
    if (mine !== pending) return; // aborted, or answered too late
    clear();
    problem(error instanceof TypeError ? "The server is not responding." : error.message);
  }
  if (mine !== pending) return;
  finish();
  $("answer").dataset.of = text;
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(translate, PAUSE);
}

const known = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });

// "German" for "de"; other names of languages as they are.
function languageName(name) {
  try {
    return /^[a-z]{2,3}([_-]\w+)*$/.test(name) ? known.of(name.replace("_", "-")) : name;
  } catch {
    return name;
  }
}

// Shows what belongs to the chosen run.
function introduce() {
  const { name, purpose, languages, step, examples } = about.runs.find((run) => run.name === $("run").value);
  const names = languages.map(languageName).join(", ");
  const facts = [names && `${languages.length > 1 ? "Languages" : "Language"}: ${names}.`, `Trained for ${step.toLocaleString("en")} steps.`];
  document.querySelector("h1").textContent = name;
  document.title = `${name} · heed`;
  $("purpose").textContent = [purpose, ...facts].filter(Boolean).join(" ");
  $("language").replaceChildren(...languages.map((code) => new Option(languageName(code), code)));
  $("of-language").hidden = languages.length < 2;
  $("examples").replaceChildren(...examples.map((text) => element("button", { type: "button", textContent: text, dir: "auto" })));
}

// Without a secure connection a browser has no clipboard to write to; it still copies what is selected.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element("textarea", { value: text, ariaHidden: "true" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  $("copy").focus();
  if (!done) throw new Error("refused");
}

$("copy").addEventListener("click", async () => {
  const chosen = $("translations").querySelector('[aria-selected="true"]');
  const [label, said] = await copy(found[+chosen.dataset.i].text).then(
    () => ["Copied", "Copied"], () => ["Copy", "The browser does not allow copying"]);
  $("copy").textContent = label;
  $("said").textContent = said;
  clearTimeout(copied);
  copied = setTimeout(() => {
    $("copy").textContent = "Copy";
    $("said").textContent = "";
  }, 1500);
});
$("examples").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  $("text").value = button.textContent;
  if (!coarse.matches) $("text").focus(); // on a phone the keyboard would cover the translation
  clearTimeout(timer);
  translate();
});
for (const { name } of about.runs) $("run").add(new Option(name, name));
for (const n of [1, 2, 4, 8, 16].filter((n) => n <= about.beams)) $("beams").add(new Option(n === 1 ? "none" : n, n));
$("of-run").hidden = about.runs.length < 2;
$("of-beams").hidden = about.beams < 2;
introduce();
$("text").addEventListener("input", soon);
$("run").addEventListener("change", () => {
  introduce();
  clear();
  kept = {}; // another model, other heads
  translate();
});
for (const id of ["language", "beams"]) $(id).addEventListener("change", translate);
$("choices").addEventListener("submit", (event) => event.preventDefault());
$("translations").addEventListener("click", (event) => {
  const item = event.target.closest("li");
  if (item) choose(+item.dataset.i);
});
$("translations").addEventListener("keydown", (event) => {
  const items = [...$("translations").children], now = items.indexOf(event.target);
  const next = { ArrowUp: now - 1, ArrowDown: now + 1, Home: 0, End: items.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  if (!items[next]) return;
  choose(next);
  items[next].focus();
});
update();
if (!coarse.matches) $("text").focus(); // on a phone the keyboard would cover half of the page
if ($("text").value) translate(); // the browser may keep it over a reload
