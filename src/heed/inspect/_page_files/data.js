// Data and colours: heads with their weights as codes, and the colours of codes.
//
// A code c stands for the weight (c / levels)^2. Colours follow the codes, which makes weak weights visible.

const $ = (id) => document.getElementById(id);
const MEAN = -1; // the number of the head that is the mean of its layer's heads
const KINDS = { self: "self-attention", causal: "causal self-attention", cross: "cross-attention" };

// Makes an element; names of attributes (role, aria-*, data-*) become attributes, other names properties.
function element(kind, properties, ...children) {
  const node = document.createElement(kind);
  for (const [name, value] of Object.entries(properties)) {
    if (/^(role$|aria-|data-)/.test(name)) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

// The language as HTML names it: "pt-BR" for "pt_BR"; unknown for other names.
function languageTag(name) {
  try {
    return /^[a-z]{2,3}([_-]\w+)*$/i.test(name) ? Intl.getCanonicalLocales(name.replaceAll("_", "-"))[0] : "";
  } catch {
    return "";
  }
}

// Clears a canvas, resizes it to its size on the screen, and returns its context; lengths are in CSS pixels.
function clearCanvas(canvas) {
  const ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(canvas.clientHeight * ratio);
  context.scale(ratio, ratio);
  return context;
}

// Whether the page scrolls instead of fitting the window; whether fingers point at it, which need larger targets.
const narrow = matchMedia("(max-width: 980px)"), coarse = matchMedia("(pointer: coarse)"), dark = matchMedia("(prefers-color-scheme: dark)");

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Decodes the result of `heed.inspect.drawing.drawing_of` into heads with codes.
async function unpack(data) {
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
    const T = layer.rowTokens.length, S = layer.keyTokens.length, first = data.heads.length;
    layer.heads.forEach((number, column) => {
      const part = codes.subarray(at, (at += T * S));
      let highest = 0;
      for (let i = 0; i < part.length; i++) if (part[i] > highest) highest = part[i];
      data.heads.push({ layer, l, column, number, highest, whole: { codes: part, T, S }, pooled: new Map() });
    });
    if (layer.heads.length > 1) data.heads.splice(first, 0, mean(data.heads.slice(first)));
  });
  data.heads.forEach((head, index) => { head.index = index; });
  data.highest = data.heads.reduce((most, head) => Math.max(most, head.highest), 1);
  return data;
}

// The mean of the heads of a layer: of their weights, not of their codes.
function mean(heads) {
  const [{ layer, l, whole: { T, S } }] = heads, codes = new Uint8Array(T * S);
  let highest = 0;
  for (let i = 0; i < codes.length; i++) {
    let sum = 0;
    for (const head of heads) sum += head.whole.codes[i] ** 2;
    codes[i] = Math.round(Math.sqrt(sum / heads.length));
    if (codes[i] > highest) highest = codes[i];
  }
  return { layer, l, column: MEAN, number: MEAN, highest, whole: { codes, T, S }, pooled: new Map() };
}

const nameOf = ({ number, layer }) => (number === MEAN ? `mean of ${layer.heads.length} heads` : `head ${number}`);

// Returns a function that removes the leading and trailing folders that all names share.
function labels(names) {
  const parts = names.map((name) => name.split("/")), shortest = Math.min(...parts.map((p) => p.length)) - 1;
  const shared = (i) => names.length > 1 && parts.every((p) => p.at(i) === parts[0].at(i));
  let first = 0, last = 0;
  while (first < shortest && shared(first)) first++;
  while (first + last < shortest && shared(-1 - last)) last++;
  return (name) => name.split("/").slice(first, name.split("/").length - last).join("/");
}

// The codes of a head with rows and columns halved `down` and `across` times. A cell is the maximum of its parts, so that
// strong weights stay visible when a screen has fewer pixels than there are tokens.
function pool(head, down, across) {
  if (!down && !across) return head.whole;
  const key = `${down} ${across}`;
  if (!head.pooled.has(key)) {
    const { codes, T, S } = across ? pool(head, down, across - 1) : pool(head, down - 1, 0);
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

// Whether a causal layer hides all keys from j on from all rows up to i.
function isHidden(layer, i, j) {
  const row = layer.rowPositions ? layer.rowPositions[i] : i;
  const key = layer.keyPositions ? layer.keyPositions[j] : j;
  return key > row + layer.offset;
}

// ColorBrewer's Blues, as in the plots of heed.inspect; on dark paper the other way round, so that strong weights stand out.
const [LIGHT, DARK] = [
  ["e9f1fa", "d3e3f3", "b5d2ea", "87bcdd", "559fd0", "2e7fbe", "1560a6", "0a4488", "08306b"],
  ["1d2632", "1f3854", "20507d", "2769a3", "3d85c4", "679fda", "98bfe9", "c6dcf5", "eef5fd"],
].map((stops) => stops.map((hex) => [0, 2, 4].map((k) => parseInt(hex.slice(k, k + 2), 16))));

function colour(share) {
  const stops = dark.matches ? DARK : LIGHT;
  const x = Math.min(1, share) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(x)), f = x - i;
  return stops[i].map((c, k) => Math.round(c + f * (stops[i + 1][k] - c)));
}

// The pixel of each code; codes below the threshold look like 0.
function paints(highest, threshold) {
  return Uint32Array.from({ length: 256 }, (_, code) => {
    const [r, g, b] = colour(code < threshold ? 0 : code / Math.max(1, highest));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}

// An image of width x height pixels: column x shows key x0 + x / sx, row y shows row y0 + y / sy.
function raster(context, head, width, height, x0, y0, sx, sy, table) {
  const [down, across] = [sy, sx].map((scale) => Math.ceil(-Math.log2(Math.min(scale, 1)) - 1e-9));
  const { codes, T, S } = pool(head, down, across), whole = head.whole;
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
      if (code === 0 && causal && isHidden(head.layer, last, j << across)) continue; // stays transparent
      pixels[y * width + x] = table[code];
    }
  }
  return image;
}

// A token with visible whitespace.
function formatToken(token) {
  const text = token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
  return text.trim() === "" ? "␣".repeat(Math.max(1, text.length)) : text;
}

function number(weight) {
  if (weight === 0) return "0";
  return weight < 0.01 ? weight.toPrecision(1) : weight.toFixed(2);
}
