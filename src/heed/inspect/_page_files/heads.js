// All heads as thumbnails, layers from top to bottom, and the filters above them.

function makeHeads(data, state, select, changed) {
  const grid = $("grid"), most = Math.max(...data.layers.map((layer) => layer.heads.length));
  // As many points for a thumbnail as leave room for all of them.
  const size = Math.max(26, Math.min(64, Math.floor(390 / most), Math.floor(560 / data.layers.length)));
  const buttons = [];

  function passes(head) {
    return (state.layer === "" || head.l === +state.layer) &&
      (state.number === "" || head.number === +state.number) &&
      (state.kind === "" || head.layer.kind === state.kind);
  }

  function element(kind, parent, properties) {
    return parent.appendChild(Object.assign(document.createElement(kind), properties));
  }

  function build() {
    grid.replaceChildren();
    buttons.length = 0;
    const heads = data.heads.filter(passes), numbers = [...new Set(heads.map((h) => h.number))].sort((a, b) => a - b);
    grid.style.gridTemplateColumns = `auto repeat(${numbers.length}, ${size}px)`;
    $("none").hidden = heads.length > 0;
    if (heads.length) {
      element("span", grid, {});
      for (const n of numbers) element("span", grid, { className: "head", textContent: n + 1, ariaHidden: "true" });
    }
    let row = null, last = null;
    for (const head of heads) {
      if (last === null || head.l !== last.l) {
        if (last && last.layer.kind !== head.layer.kind) element("div", grid, { className: "gap" });
        row = element("div", grid, {});
        row.setAttribute("role", "row");
        const name = element("span", row, { className: "layer", title: head.layer.name });
        // Lines break after / and _ only.
        for (const part of head.layer.label.split(/(?<=[/_])/)) name.append(part, document.createElement("wbr"));
        name.setAttribute("role", "rowheader");
        name.style.gridColumn = "1";
        name.style.maxHeight = `${size}px`;
      }
      last = head;
      const label = `${head.layer.name}, head ${head.number + 1}, ${KINDS[head.layer.kind]}`;
      const button = element("button", row, { type: "button", title: label, tabIndex: -1 });
      button.setAttribute("role", "gridcell");
      button.setAttribute("aria-label", label);
      button.style.gridColumn = String(numbers.indexOf(head.number) + 2);
      button.dataset.head = head.index;
      const canvas = element("canvas", button, {});
      canvas.style.width = canvas.style.height = `${size}px`;
      buttons.push(button);
    }
    if (heads.length && !heads.includes(state.head)) select(heads[0]);
    mark();
    draw();
  }

  function mark() {
    for (const button of buttons) {
      const on = +button.dataset.head === state.head.index;
      button.setAttribute("aria-selected", on);
      button.tabIndex = on ? 0 : -1;
    }
  }

  // A few at a time: a model of many heads on long sequences must not hold the page up.
  let drawing = 0;
  function draw() {
    const turn = ++drawing, waiting = [...buttons], pixels = Math.round(size * Math.min(2, devicePixelRatio || 1));
    (function some() {
      const end = performance.now() + 12;
      while (turn === drawing && waiting.length && performance.now() < end) {
        const button = waiting.shift(), head = data.heads[+button.dataset.head], canvas = button.firstChild;
        const { T, S } = head.whole;
        canvas.width = canvas.height = pixels;
        const context = canvas.getContext("2d");
        context.putImageData(raster(context, head, pixels, pixels, 0, 0, pixels / S, pixels / T, state.paint(head)), 0, 0);
      }
      if (turn === drawing && waiting.length) requestAnimationFrame(some);
    })();
  }

  grid.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) select(data.heads[+button.dataset.head]);
  });
  grid.addEventListener("keydown", (event) => {
    const heads = buttons.map((b) => data.heads[+b.dataset.head]), now = heads.indexOf(state.head);
    const others = { ArrowUp: -1, ArrowDown: 1 };
    let next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: heads.length - 1 }[event.key];
    if (event.key in others) {
      const layers = [...new Set(heads.map((h) => h.l))], l = layers[layers.indexOf(state.head.l) + others[event.key]];
      const row = heads.filter((h) => h.l === l).sort((a, b) => Math.abs(a.number - state.head.number) - Math.abs(b.number - state.head.number));
      next = heads.indexOf(row[0]);
    }
    if (next === undefined) return;
    event.preventDefault();
    if (!heads[next]) return;
    select(heads[next]);
    buttons[next].focus();
    buttons[next].scrollIntoView({ block: "nearest", inline: "nearest" });
  });

  function choices(select, all, values) {
    select.add(new Option(all, ""));
    for (const [value, text] of values) select.add(new Option(text, value));
  }
  const numbers = [...new Set(data.heads.map((h) => h.number))].sort((a, b) => a - b);
  const kinds = Object.keys(KINDS).filter((kind) => data.layers.some((layer) => layer.kind === kind));
  choices($("layer"), "all", data.layers.map((layer, l) => [l, layer.name]));
  choices($("head"), "all", numbers.map((n) => [n, n + 1]));
  choices($("kind"), "all", kinds.map((kind) => [kind, KINDS[kind]]));
  $("kinds").hidden = kinds.length < 2;
  for (const [id, key] of [["layer", "layer"], ["head", "number"], ["kind", "kind"]]) {
    $(id).addEventListener("change", () => { state[key] = $(id).value; build(); });
  }
  function threshold() {
    const share = +$("threshold").value / 100;
    state.threshold = Math.ceil(share * data.levels - 1e-9);
    $("hidden").textContent = number(share * share);
  }
  $("threshold").addEventListener("input", () => { threshold(); changed(); draw(); });
  $("own").addEventListener("change", () => { state.own = $("own").checked; changed(); draw(); });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  threshold();
  state.own = $("own").checked;
  return { build, mark };
}
