// The state of the view, its readout, and its entry point.

// Fills the empty elements of the view. Returns `kept`, which returns the choices of the user for the next `show`, and
// `end`, to call before the elements are removed.
function show(data, kept = {}) {
  // The mean of a layer's heads comes first.
  const usual = data.heads.find((head) => head.layer.kind === "cross") || data.heads[0];
  const chosen = data.heads.find((head) => head.layer.name === kept.layer && head.number === kept.number);
  const state = { threshold: 0, own: false, head: chosen || usual, hovered: null, pinned: null };
  for (const [id, of] of Object.entries(kept.controls || {})) Object.assign($(id), of);
  const ended = new AbortController(), { signal } = ended;
  state.highest = (head) => (state.own ? head.highest : data.highest);
  const tables = new Map();
  state.paint = (head) => {
    const key = `${state.highest(head)} ${state.threshold}`;
    if (!tables.has(key)) tables.clear(), tables.set(key, paints(state.highest(head), state.threshold));
    return tables.get(key);
  };
  let asked = false;
  state.redraw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      if (signal.aborted) return;
      const active = state.hovered || state.pinned;
      lines.draw(active);
      matrix.draw(active);
    });
  };
  const same = (a, b) => a === b || (a && b && a.row === b.row && a.key === b.key);
  function focus(place) {
    if (same(place, state.hovered)) return;
    state.hovered = place;
    updateReadout();
    state.redraw();
  }
  function pin(place) {
    state.pinned = place;
    if (place) {
      lines.reveal(place);
      matrix.follow(place);
    }
    updateReadout();
    state.redraw();
  }
  const lines = makeLines(data, state, focus, pin);
  const matrix = makeMatrix(data, state, focus, pin);
  const heads = makeHeads(data, state, select, changed, kept.filters || {});

  function select(head) {
    const before = state.head.layer, after = head.layer;
    state.head = head;
    if (before.rows !== after.rows || before.keys !== after.keys) {
      state.hovered = state.pinned = null;
      matrix.fit();
    }
    lines.show();
    heads.mark();
    changed();
  }

  function changed() {
    const { layer } = state.head, kind = element("span", { textContent: `  ${KINDS[layer.kind]}` });
    $("name").replaceChildren(`${layer.name}, ${nameOf(state.head)}`, kind);
    const bar = $("bar").getContext("2d"), image = bar.createImageData(128, 1);
    for (let x = 0; x < 128; x++) image.data.set([...colour(x / 127), 255], 4 * x);
    bar.putImageData(image, 0, 0);
    $("highest").textContent = number((state.highest(state.head) / data.levels) ** 2);
    updateReadout();
    state.redraw();
  }

  const MOST_LISTED = 8;
  function updateReadout() {
    const active = state.hovered || state.pinned, out = $("readout"), { layer } = state.head, { T, S } = state.head.whole;
    const weight = (code) => number((code / data.levels) ** 2);
    const bold = (text) => element("b", { textContent: formatToken(text), dir: "auto", lang: "" });
    out.replaceChildren();
    if (!active) {
      out.append(coarse.matches ? "Tap a token to see what it attends to." : "Point at a token to see what it attends to, or press Tab and use the arrow keys.");
      return;
    }
    const put = (...parts) => out.append(element("span", {}, ...parts));
    if (active.row !== undefined && active.key !== undefined) {
      put(bold(layer.rowTokens[active.row]), " → ", bold(layer.keyTokens[active.key]), `  ${weight(codeAt(state.head, active.row, active.key))}`);
    }
    const byRow = active.row !== undefined, tokens = byRow ? layer.keyTokens : layer.rowTokens;
    const found = Array.from({ length: byRow ? S : T }, (_, i) => [byRow ? codeAt(state.head, active.row, i) : codeAt(state.head, i, active.key), i])
      .filter(([code]) => code >= Math.max(1, state.threshold)).sort((a, b) => b[0] - a[0]);
    const token = bold(byRow ? layer.rowTokens[active.row] : layer.keyTokens[active.key]);
    put(token, byRow ? " attends to" : " is attended to by", found.length ? "" : " nothing");
    // Leaves out weights that are negligible compared with the strongest.
    for (const [code, i] of found.slice(0, MOST_LISTED).filter(([code]) => code > found[0][0] / 16)) {
      const name = element("i", { textContent: formatToken(tokens[i]), dir: "auto", lang: "" });
      out.append(element("span", { className: "value" }, name, " ", element("span", { textContent: weight(code) })));
    }
  }

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { state.hovered = null; pin(null); }
  }, { signal });
  dark.addEventListener("change", () => {
    tables.clear();
    changed();
    heads.draw();
  }, { signal });
  coarse.addEventListener("change", () => {
    lines.show();
    matrix.fit();
    heads.build();
    state.redraw();
  }, { signal });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone hides and shows its address bar as it scrolls
    width = innerWidth;
    matrix.fitHeight();
    heads.build();
  }, { signal });
  const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
  $("summary").textContent = `${count(data.layers.length, "layer")}, ${count(data.heads.filter((head) => head.number !== MEAN).length, "head")}` +
    (data.sequences.length === 1 ? `, ${count(data.sequences[0].length, "token")}` : "");
  $("footer").textContent = data.note;
  lines.show();
  matrix.fit();
  heads.build();
  changed();
  return {
    kept: () => ({
      layer: state.head.layer.name,
      number: state.head.number,
      filters: heads.filters(),
      controls: { threshold: { value: $("threshold").value }, own: { checked: $("own").checked } },
    }),
    end: () => ended.abort(),
  };
}

