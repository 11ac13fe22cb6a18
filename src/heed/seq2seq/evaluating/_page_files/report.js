// The report of an evaluation; the data is embedded in the page.

const report = JSON.parse($("data").textContent);
$("data").remove();
const RUNS = ["first", "second"];

function figures() {
  for (const { name, values, note } of report.figures) {
    const spans = values.map((value, run) => element("span", { className: `value ${RUNS[run]}`, textContent: value || "–" }));
    const how = element("dd", { className: "note" });
    for (const part of note.split(/(?<=\|)/)) how.append(part, element("wbr", {})); // signatures break after |
    $("figures").append(element("div", {}, element("dt", { textContent: name }), element("dd", {}, ...spans), how));
  }
  for (const note of report.notes) $("notes").append(element("p", { textContent: note }));
}

// A histogram of the sentences by score: bars for the first run, an outline for the second.
function spread() {
  const SVG = "http://www.w3.org/2000/svg", [bins, other] = report.bins;
  const W = 880, H = 150, TOP = 16, BOTTOM = 24, step = W / bins.length;
  const most = Math.max(1, ...report.bins.flat().map(([all]) => all)), y = (n) => TOP + H - (n / most) * H;
  const made = (kind, attributes, ...children) => {
    const it = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) it.setAttribute(name, value);
    it.append(...children);
    return it;
  };
  const text = (x, at, of) => made("text", { x, y: at, "text-anchor": "middle" }, of);
  const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
  const picture = made("svg", { viewBox: `-12 0 ${W + 24} ${TOP + H + BOTTOM}`, role: "img", "aria-label": "Number of sentences by chrF" });
  bins.forEach(([all, right], i) => {
    const x = i * step + 1.5, width = step - 3, from = (100 * i) / bins.length, to = (100 * (i + 1)) / bins.length;
    const bar = (kind, n) => made("rect", { class: kind, x, width, y: y(n), height: TOP + H - y(n) });
    const label = `chrF ${from} to ${to}: ${count(all, "sentence")}, ${right.toLocaleString("en")} right to the letter`;
    picture.append(made("g", { class: "bin" }, made("title", {}, label), made("rect", { class: "room", x, width, y: TOP, height: H }),
      bar("all", all), bar("right", right), ...(all ? [text(x + width / 2, y(all) - 4, all.toLocaleString("en"))] : [])));
  });
  if (other) {
    const path = other.map(([all], i) => `L${i * step} ${y(all)}H${(i + 1) * step}`).join("");
    picture.append(made("path", { class: "other", d: `M0 ${TOP + H}${path}V${TOP + H}` }));
  }
  picture.append(made("line", { class: "axis", x1: 0, x2: W, y1: TOP + H, y2: TOP + H }));
  for (let at = 0; at <= 100; at += 10) picture.append(text((at / 100) * W, TOP + H + 16, at));
  $("spread").append(picture);
}

// A text; marks the parts that are missing from the other text.
function texts(parts) {
  return parts.map(([text, lacking]) => (lacking ? element("mark", { textContent: text }) : text));
}

// A row of a sentence; `lang` is that of its text, "" if it is unknown.
function row(name, parts, lang, kind = "") {
  const text = parts.length ? parts : [element("i", { textContent: "nothing", lang: "en" })];
  return [element("dt", { className: kind, textContent: name }), element("dd", { dir: "auto", lang }, ...text)];
}

let sentences = 0; // that have attention

function sentence(one) {
  const two = report.runs.length > 1;
  const score = ({ score }, run) => element("span", { className: `score ${RUNS[run]}`, textContent: score.toFixed(1), title: "chrF" });
  const rows = [row(one.group ? `source (${one.group})` : "source", [one.source], "")], lang = languageTag(one.language);
  if (!two && one.right) {
    rows.push(row("translation, reference", texts(one.reference), lang));
  } else {
    one.translations.forEach(({ parts }, run) => rows.push(row(two ? report.runs[run] : "translation", texts(parts), lang, RUNS[run])));
    rows.push(row("reference", texts(one.reference), lang));
  }
  const made = element("article", {},
    element("div", { className: "scores" }, ...one.translations.map(score)), element("dl", {}, ...rows.flat()));
  if (one.attention) {
    const button = element("button", { type: "button", textContent: "Show attention", "aria-expanded": "false" });
    // Each says of which sentence.
    button.id = `attention-${++sentences}`;
    rows[0][1].id = `source-${sentences}`;
    button.setAttribute("aria-labelledby", `${button.id} source-${sentences}`);
    button.addEventListener("click", () => open(button, made, one.attention));
    made.append(button);
  }
  return made;
}

let opened = null; // the button, stage and drawing of the open sentence; one at a time
let kept = {};     // the user's choices in the last drawing
let turns = 0;

// Opens the attention of a sentence below it, and closes the one that is open.
async function open(button, article, attention) {
  const again = opened && opened.button === button, turn = ++turns;
  const data = again ? null : await unpack(attention);
  if (turn !== turns) return;
  if (opened) {
    kept = opened.drawn.kept();
    opened.drawn.end();
    opened.stage.remove();
    opened.button.setAttribute("aria-expanded", "false");
    opened = null;
  }
  if (!data) return;
  const stage = element("div", { className: "stage" }, $("view").content.cloneNode(true));
  article.append(stage);
  button.setAttribute("aria-expanded", "true");
  opened = { button, stage, drawn: show(data, kept) };
}

document.body.dataset.runs = report.runs.length;
$("about").textContent = report.about;
if (report.runs.length > 1) {
  report.runs.forEach((name, run) => $("legend").append(element("span", { className: `run ${RUNS[run]}`, textContent: name })));
  $("legend").hidden = false;
}
figures();
spread();
$("all-right").hidden = report.wrong > 0;
for (const id of ["worst", "best"]) $(id).append(...report[id].map(sentence));
$("without").textContent = report.withoutAttention;
