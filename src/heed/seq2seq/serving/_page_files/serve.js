// The page of a server: translates text as you type, and draws the attention of the model below.

const about = JSON.parse($("about").textContent);
const PAUSE = 150; // milliseconds after the last key until the text is sent

let drawn = null;   // the result of `show`, while there is a drawing
let kept = {};      // the user's choices in the last drawing
let staged = 0;     // the number of requested drawings; only the last is shown
let pending = null; // the request in progress; a newer one aborts it, so no stale answer is shown
let timer = 0;
let found = [];     // the listed translations

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

function clear() {
  found = [];
  $("translations").replaceChildren();
  stage(null);
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

function choose(i) {
  [...$("translations").children].forEach((item, at) => {
    item.setAttribute("aria-selected", at === i);
    item.tabIndex = at === i ? 0 : -1;
  });
  stage(found[i].attention);
}

async function translate() {
  const text = $("text").value;
  if (pending) pending.abort();
  pending = null;
  problem("");
  $("state").textContent = "";
  if (!text.trim()) {
    $("answer").setAttribute("aria-busy", "false");
    return clear();
  }
  const mine = (pending = new AbortController()), body = { texts: [text], run: $("run").value, attention: true };
  const beams = +$("beams").value;
  if (beams > 1) Object.assign(body, { beam_size: beams, n_best: beams });
  if ($("language").value) body.language = $("language").value;
  $("answer").setAttribute("aria-busy", "true");
  const begin = performance.now();
  try {
    const answer = await fetch("translate", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: mine.signal,
    });
    const result = await answer.json();
    if (mine !== pending) return;
    if (!answer.ok) throw new Error(String(result.detail).replace(/^texts\.0: /, ""));
    const [one] = result.translations;
    list(one.hypotheses || [one]);
    $("state").textContent = `${Math.round(performance.now() - begin)} ms`;
    await stage(found[0].attention);
  } catch (error) {
    if (mine !== pending) return; // aborted, or answered too late
    clear();
    problem(error instanceof TypeError ? "The server is not responding." : error.message);
  } finally {
    if (mine === pending) {
      $("answer").setAttribute("aria-busy", "false");
      $("answer").dataset.of = text;
    }
  }
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(translate, PAUSE);
}

function languages() {
  const { languages } = about.runs.find(({ name }) => name === $("run").value);
  $("language").replaceChildren(...languages.map((name) => new Option(name, name)));
  $("of-language").hidden = languages.length < 2;
}

for (const { name } of about.runs) $("run").add(new Option(name, name));
for (const n of [1, 2, 4, 8, 16].filter((n) => n <= about.beams)) $("beams").add(new Option(n === 1 ? "none" : n, n));
$("of-run").hidden = about.runs.length < 2;
$("of-beams").hidden = about.beams < 2;
languages();
$("text").addEventListener("input", soon);
$("run").addEventListener("change", () => {
  languages();
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
if ($("text").value) translate(); // the browser may keep it over a reload
