// What the page shows: heads with their weights as codes, and how codes turn into colours.
//
// A code c stands for the weight (c / levels)^2, so colours, which follow the codes, show weak weights too.

const $ = (id) => document.getElementById(id);
const KINDS = { self: "self-attention", causal: "causal self-attention", cross: "cross-attention" };

// An element with properties, and attributes where the name is that of one.
function element(kind, properties, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(properties)) {
    if (/^(role$|aria-|data-)/.test(name)) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

// The context of a canvas that is empty, and as large as it is shown; lengths are in points.
function cleared(canvas) {
  const ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(canvas.clientHeight * ratio);
  context.scale(ratio, ratio);
  return context;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A drawing as `heed.inspect.drawing.drawing_of` made it, with its heads as codes.
async function unpacked(data) {
  const text = atob(data.weights), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const codes = new Uint8Array(await new Response(stream).arrayBuffer());
  let at = 0;
  data.heads = [];
  const label = labels(data.layers.map((layer) => layer.name));
  data.layers.forEach((layer, l) => {
    layer.rowTokens = data.sequences[layer.rows];
    layer.keyTokens = data.sequences[layer.keys];
    layer.label = label(layer.name);
    const T = layer.rowTokens.length, S = layer.keyTokens.length;
    layer.heads.forEach((number, column) => {
      const part = codes.subarray(at, (at += T * S));
      let highest = 0;
      for (let i = 0; i < part.length; i++) if (part[i] > highest) highest = part[i];
      data.heads.push({ layer, l, column, number, highest, whole: { codes: part, T, S }, pooled: new Map(), index: data.heads.length });
    });
  });
  data.highest = data.heads.reduce((most, head) => Math.max(most, head.highest), 1);
  return data;
}

// Names without the whole folders that all of them begin or end with.
function labels(names) {
  const parts = names.map((name) => name.split("/")), shortest = Math.min(...parts.map((p) => p.length)) - 1;
  const shared = (i) => names.length > 1 && parts.every((p) => p.at(i) === parts[0].at(i));
  let first = 0, last = 0;
  while (first < shortest && shared(first)) first++;
  while (first + last < shortest && shared(-1 - last)) last++;
  return (name) => name.split("/").slice(first, name.split("/").length - last).join("/");
}

// The weights of a head with rows and columns halved some times: each cell is the highest of those that it stands
// for, so that no strong weight is lost where a screen has fewer points than there are tokens.
function pooled(head, down, across) {
  if (!down && !across) return head.whole;
  const key = `${down} ${across}`;
  if (!head.pooled.has(key)) {
    const { codes, T, S } = across ? pooled(head, down, across - 1) : pooled(head, down - 1, 0);
    const [t, s] = across ? [T, (S + 1) >> 1] : [(T + 1) >> 1, S], small = new Uint8Array(t * s);
    for (let i = 0; i < T; i++) {
      for (let j = 0, to = (across ? i : i >> 1) * s, from = i * S; j < S; j++) {
        const at = to + (across ? j >> 1 : j);
        if (codes[from + j] > small[at]) small[at] = codes[from + j];
      }
    }
    head.pooled.set(key, { codes: small, T: t, S: s });
  }
  return head.pooled.get(key);
}

const codeAt = (head, i, j) => head.whole.codes[i * head.whole.S + j];

// Whether a causal layer cannot see any of the keys from j on from any of the rows up to i.
function unseen(layer, i, j) {
  const row = layer.rowPositions ? layer.rowPositions[i] : i;
  const key = layer.keyPositions ? layer.keyPositions[j] : j;
  return key > row + layer.offset;
}

// cividis (Nunez, Anderton and Renslow 2018): the same order of light and dark for all colour vision.
const STOPS = ["00224e", "013271", "2f426d", "48526c", "5e636f", "727374", "878478", "9d9576", "b6a96f", "cebc63", "e7d150", "fee838"]
  .map((hex) => [0, 2, 4].map((k) => parseInt(hex.slice(k, k + 2), 16)));

function colour(share) {
  const x = Math.min(1, share) * (STOPS.length - 1), i = Math.min(STOPS.length - 2, Math.floor(x)), f = x - i;
  return STOPS[i].map((c, k) => Math.round(c + f * (STOPS[i + 1][k] - c)));
}

// A pixel for each code; codes below the threshold look like 0.
function paints(highest, threshold) {
  return Uint32Array.from({ length: 256 }, (_, code) => {
    const [r, g, b] = colour(code < threshold ? 0 : code / Math.max(1, highest));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}

// A picture of width x height pixels: column x shows key x0 + x / sx, row y shows row y0 + y / sy.
function raster(context, head, width, height, x0, y0, sx, sy, table) {
  const [down, across] = [sy, sx].map((scale) => Math.ceil(-Math.log2(Math.min(scale, 1)) - 1e-9));
  const { codes, T, S } = pooled(head, down, across), whole = head.whole;
  const image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
  const columns = Int32Array.from({ length: width }, (_, x) => Math.floor(x0 + (x + 0.5) / sx) >> across);
  const causal = head.layer.kind === "causal";
  for (let y = 0; y < height; y++) {
    const i = Math.floor(y0 + (y + 0.5) / sy) >> down;
    if (i < 0 || i >= T) continue;
    const last = Math.min(whole.T - 1, ((i + 1) << down) - 1);
    for (let x = 0; x < width; x++) {
      const j = columns[x];
      if (j < 0 || j >= S) continue;
      const code = codes[i * S + j];
      if (code === 0 && causal && unseen(head.layer, last, j << across)) continue; // stays transparent
      pixels[y * width + x] = table[code];
    }
  }
  return image;
}

// A token as it can be seen and told from others.
function shown(token) {
  const text = token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
  return text.trim() === "" ? "␣".repeat(Math.max(1, text.length)) : text;
}

function number(weight) {
  if (weight === 0) return "0";
  return weight < 0.01 ? weight.toPrecision(1) : weight.toFixed(2);
}
