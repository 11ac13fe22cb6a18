// Splits what people type or paste into texts that a model translates one by one, and joins their translations.

const BREAKS = /\r\n|[\n\v\f\r\u0085\u2028\u2029]/;

// The texts of an input: its lines, and the parts of lines that are too long. Each has the number of its line and what
// stands before it in the line.
function split(input, longest) {
  return input.split(BREAKS).flatMap((line, number) => {
    const text = line.trim();
    if (!text) return [];
    const parts = lengthOf(text) > longest ? sentences(text, longest) : [{ text, before: "" }];
    return parts.map((part) => ({ ...part, line: number }));
  });
}

// The sentences of a text, themselves cut at spaces if they are too long, or anywhere if they have none.
function sentences(text, longest) {
  const whole = Intl.Segmenter ? [...new Intl.Segmenter(undefined, { granularity: "sentence" }).segment(text)] : [{ segment: text }];
  const parts = [];
  let before = "";
  for (const { segment } of whole) {
    let rest = segment.trim();
    while (rest) {
      const part = lengthOf(rest) > longest ? cut(rest, longest) : rest;
      parts.push({ text: part.trim(), before });
      before = /^\s/.test(rest.slice(part.length)) || /\s$/.test(part) ? " " : "";
      rest = rest.slice(part.length).trim();
    }
    before = /\s$/.test(segment) ? " " : "";
  }
  return parts.filter(({ text }) => text);
}

function cut(text, longest) {
  const most = [...text].slice(0, longest).join(""), space = most.search(/\s\S*$/);
  return space > 0 ? most.slice(0, space) : most;
}

// As the server counts: characters, not UTF-16 units.
const lengthOf = (text) => [...text].length;

// The translations of all texts, on the lines of the input.
function join(parts) {
  let at = 0;
  return parts.map(({ line, before, text }, i) => {
    const gap = i === 0 ? "" : line > at ? "\n".repeat(line - at) : before;
    at = line;
    return gap + text;
  }).join("");
}
