// The page of a server: translates text as you type, and draws the attention of the model below.

const about = JSON.parse($("about").textContent);
const PAUSE = 150; // milliseconds after the last key until the text is sent
const AT_ONCE = 4; // texts of one input that are translated together
const MOST = 200; // texts of an input; files are for `heed translate`
const KNOWN = 1000; // translations that are remembered, so that a new line does not ask for all others again

let drawn = null;   // the result of `show`, while there is a drawing
let kept = {};      // the user's choices in the last drawing
let staged = 0;     // the number of requested drawings; only the last is shown
let pending = null; // the request in progress; a newer one aborts it, so no stale answer is shown
let timer = 0;
let found = [];     // the listed translations: alternatives, or one for each text of the input
let several = false; // whether they are of several texts
const remembered = new Map(); // translations by request
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
  $("copy").hidden = $("translations").hidden = found.length === 0;
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

function list(translations, chosen = 0) {
  const focused = $("translations").contains(document.activeElement);
  found = translations;
  $("translations").setAttribute("aria-label", several ? "Translations, text by text" : "Translations, most likely first");
  $("translations").lang = languageTag($("language").value);
  $("translations").classList.toggle("several", several);
  $("translations").replaceChildren(...found.map((one, i) => element("li", {
    textContent: one.problem || formatToken(one.text), title: titleOf(one), ...(one.problem && { lang: "en" }),
    className: `${one.problem ? "refused" : ""} ${i && one.line > found[i - 1].line + 1 ? "after-gap" : ""}`.trim(),
    dir: "auto", tabIndex: i === chosen ? 0 : -1, role: "option", "aria-selected": String(i === chosen), "data-i": i,
  })));
  if (focused && found.length) $("translations").children[chosen].focus();
}

function titleOf({ source, score }) {
  return several ? source : score === undefined ? "" : `score ${score.toFixed(2)}`;
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
    for (const part of parts) { // a regular expression would take U+2028 and U+2029 for ends of lines
      const fields = Object.fromEntries(part.split("\n").map((line) => line.split(/: (.*)/s)));
      yield [fields.event || "piece", JSON.parse(fields.data)];
    }
  }
}

// What the server says about a text that it does not translate.
class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.ofText = status === 422;
  }
}

// The result of a request. A translation without alternatives comes in pieces.
async function ask(body, mine) {
  const answer = await fetch("translate", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: mine.signal,
  });
  if (!answer.ok) throw new Refusal(String((await answer.json()).detail).replace(/^texts\.0: /, ""), answer.status);
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
  draw(found[i]);
}

// Draws the attention of a translation; that of one of several texts is asked for when it is chosen.
async function draw(one) {
  const mine = pending;
  if (several && !one.attention && !one.problem && one.text) {
    const turn = ++staged;
    try {
      const result = await ask(request(one.source, { attention: true }), new AbortController());
      one.attention = result.translations[0].attention;
    } catch {
      // The translation stays without its drawing.
    }
    if (turn !== staged || mine !== pending) return;
  }
  await stage(one.attention);
}

function finish() {
  pending = null;
  $("answer").setAttribute("aria-busy", "false");
  $("answer").classList.remove("stale", "writing");
  update();
}

function request(text, options) {
  const beams = +$("beams").value, body = { texts: [text], run: $("run").value, ...options };
  if ($("language").value) body.language = $("language").value;
  if (beams > 1) body.beam_size = beams;
  return body;
}

async function translate() {
  const text = $("text").value, parts = split(text, about.characters);
  if (pending) pending.abort();
  $("state").textContent = "";
  if (!parts.length) {
    finish();
    problem("");
    return clear();
  }
  const mine = (pending = new AbortController());
  problem("");
  $("answer").setAttribute("aria-busy", "true");
  $("answer").classList.add("stale");
  const begin = performance.now();
  try {
    const done = parts.length === 1 && (await translateOne(parts[0].text, mine));
    if (mine !== pending) return;
    if (!done) await translateAll(parts, mine);
    if (mine !== pending) return;
    $("state").textContent = describe(parts.length, performance.now() - begin);
    if (several) await draw(found.find((one) => !one.problem) || found[0]);
    else await stage(found[0].attention);
  } catch (error) {
    if (mine !== pending) return; // aborted, or answered too late
    clear();
    problem(error instanceof TypeError ? "The server is not responding." : error.message);
  }
  if (mine !== pending) return;
  finish();
  $("answer").dataset.of = text;
}

function describe(count, milliseconds) {
  const what = several ? `${found.length.toLocaleString("en")} texts translated` : "Translated";
  const facts = [`${what} in ${Math.round(milliseconds)} ms`];
  if (count > MOST) facts.push(`the first ${MOST} of ${count.toLocaleString("en")}: use heed translate for files`);
  if (several && +$("beams").value > 1) facts.push("alternatives are listed for a single text");
  if (found.some((one) => one.cut)) facts.push("a translation was cut, because it reached the greatest length");
  return facts.join("; ");
}

// Translates one text, in pieces or with alternatives. Returns false if it is refused and has sentences to try.
async function translateOne(text, mine) {
  const beams = +$("beams").value, body = request(text, { attention: true });
  if (beams > 1) body.n_best = beams;
  else body.stream = true;
  several = false;
  try {
    const result = await ask(body, mine);
    if (mine !== pending) return true;
    const [one] = result.translations;
    list((one.hypotheses || [one]).map((each) => ({ cut: one.cut, ...each, line: 0, before: "" })));
    return true;
  } catch (error) {
    if (error instanceof Refusal && error.ofText && sentences(text, about.characters).length > 1) return false;
    throw error;
  }
}

// Translates several texts, a few at a time, and lists what is there. One that is refused stops no other.
async function translateAll(parts, mine) {
  const results = parts.slice(0, MOST).map((part) => [{ ...part, source: part.text, text: "" }]);
  several = true;
  let next = 0;
  const work = async () => {
    while (next < results.length && mine === pending) {
      const at = next++, [part] = results[at];
      results[at] = await translatePart(part, mine);
      if (mine !== pending) return;
      const chosen = Math.max(0, [...$("translations").children].findIndex((item) => item.tabIndex === 0));
      list(results.flat(), several && found.length > 1 ? Math.min(chosen, results.flat().length - 1) : 0);
      $("answer").classList.remove("stale");
      update();
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

// The translations of a line: one, or of its sentences where the line is refused.
async function translatePart(part, mine) {
  const body = request(part.source, {}), key = JSON.stringify(body);
  if (remembered.has(key)) return [{ ...part, ...remembered.get(key) }];
  try {
    const [{ text, cut }] = (await ask(body, mine)).translations;
    if (remembered.size >= KNOWN) remembered.clear();
    remembered.set(key, { text, cut });
    return [{ ...part, text, cut }];
  } catch (error) {
    if (!(error instanceof Refusal) || !error.ofText) throw error;
    const inner = sentences(part.source, about.characters);
    if (inner.length < 2) return [{ ...part, problem: `Line ${part.line + 1}: ${error.message}` }];
    const done = [];
    for (const [i, one] of inner.entries()) {
      const before = i === 0 ? part.before : one.before;
      done.push(...(await translatePart({ ...part, before, source: one.text }, mine)));
    }
    return done;
  }
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

// The choices are part of the address: a reload, a bookmark and a link keep them.
function keepChoices() {
  const kept = new URLSearchParams();
  if ($("run").selectedIndex > 0) kept.set("run", $("run").value);
  if ($("language").selectedIndex > 0) kept.set("language", $("language").value);
  if ($("beams").selectedIndex > 0) kept.set("alternatives", $("beams").value);
  history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname + location.search);
}

function restoreChoices() {
  const kept = new URLSearchParams(location.hash.slice(1));
  const set = (id, value) => {
    const at = [...$(id).options].findIndex((option) => option.value === value);
    $(id).selectedIndex = Math.max(0, at);
  };
  set("run", kept.get("run"));
  introduce();
  set("language", kept.get("language"));
  set("beams", kept.get("alternatives"));
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
  $("examples").replaceChildren(...examples.map((text) => element("button", { type: "button", textContent: text, dir: "auto", lang: "" })));
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
  const [label, said] = await copy(several ? join(found) : found[+chosen.dataset.i].text).then(
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
restoreChoices();
$("text").addEventListener("input", soon);
function changeRun() {
  clear();
  kept = {}; // another model, other heads
  translate();
}

$("run").addEventListener("change", () => {
  introduce();
  keepChoices();
  changeRun();
});
for (const id of ["language", "beams"]) {
  $(id).addEventListener("change", () => {
    keepChoices();
    translate();
  });
}
addEventListener("hashchange", () => {
  restoreChoices();
  changeRun();
});
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
