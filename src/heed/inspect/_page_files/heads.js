// All heads as thumbnails, layers from top to bottom, and the filters above them.

function makeHeads(data, state, select, changed, kept) {
  const grid = $("grid"), GAP = 3, LABELS = 96;
  const most = Math.max(...data.layers.map((layer) => layer.heads.length + (layer.heads.length > 1)));
  const buttons = [], box = grid.parentElement;
  let size = 0; // of a thumbnail

  // The size leaves room for all of them, but a finger must be able to hit one.
  function fitSize() {
    const width = narrow.matches ? box.clientWidth - LABELS : 390 + GAP * most;
    const height = narrow.matches ? Infinity : 560;
    return Math.max(least(), Math.min(64, Math.floor(width / most) - GAP, Math.floor(height / data.layers.length)));
  }
  const least = () => (coarse.matches ? 44 : 26);

  const numbersOf = (heads) => [...new Set(heads.map((head) => head.number))].sort((a, b) => a - b);
  // For each filter, the property of a head that it compares, and its choices.
  const filters = {
    layer: [(head) => head.l, data.layers.map((layer, l) => [l, layer.name])],
    head: [(head) => head.number, numbersOf(data.heads).map((n) => [n, n === MEAN ? "mean" : n])],
    kind: [(head) => head.layer.kind, Object.entries(KINDS).filter(([kind]) => data.layers.some((layer) => layer.kind === kind))],
  };
  const passes = (head) => Object.entries(filters).every(([id, [of]]) => $(id).value === "" || $(id).value === String(of(head)));

  function build() {
    size = fitSize();
    place();
    const spare = box.clientHeight - box.scrollHeight, rows = new Set(data.heads.filter(passes).map((head) => head.l)).size;
    if (!narrow.matches && spare < 0 && size > least()) {
      size = Math.max(least(), size + Math.floor(spare / rows));
      place();
    }
    draw();
    // Without scrolling the page.
    const chosen = buttons.find((button) => +button.dataset.head === state.head.index);
    if (chosen && box.scrollHeight > box.clientHeight) box.scrollTop = chosen.offsetTop - box.offsetTop - box.clientHeight / 2;
  }

  function place() {
    grid.replaceChildren();
    buttons.length = 0;
    const heads = data.heads.filter(passes), numbers = numbersOf(heads);
    // Whole rows, where there are too many for the window.
    const rows = Math.max(3, Math.floor(innerHeight / 2 / (size + GAP)));
    box.style.maxHeight = narrow.matches ? `${24 + rows * (size + GAP)}px` : "";
    grid.style.gridTemplateColumns = `auto repeat(${numbers.length}, ${size}px)`;
    $("none").hidden = heads.length > 0;
    if (heads.length) {
      grid.append(element("span", {}));
      for (const n of numbers) grid.append(element("span", { className: "head", textContent: n === MEAN ? "mean" : n, ariaHidden: "true" }));
    }
    let row = null, last = null;
    for (const head of heads) {
      if (last === null || head.l !== last.l) {
        if (last && last.layer.kind !== head.layer.kind) grid.append(element("div", { className: "gap" }));
        const name = element("span", { className: "layer", title: head.layer.name, role: "rowheader" });
        // Lines break after / and _ only.
        for (const part of head.layer.label.split(/(?<=[/_])/)) name.append(part, element("wbr", {}));
        row = grid.appendChild(element("div", { role: "row" }, name));
        name.style.gridColumn = "1";
        name.style.maxHeight = `${size}px`;
      }
      last = head;
      const label = `${head.layer.name}, ${nameOf(head)}, ${KINDS[head.layer.kind]}`;
      const canvas = element("canvas", {});
      canvas.style.width = canvas.style.height = `${size}px`;
      const button = element("button", {
        type: "button", title: label, tabIndex: -1, role: "gridcell", "aria-label": label, "data-head": head.index,
      }, canvas);
      button.style.gridColumn = String(numbers.indexOf(head.number) + 2);
      row.append(button);
      buttons.push(button);
    }
    if (heads.length && !heads.includes(state.head)) select(heads[0]);
    mark();
  }

  function mark() {
    for (const button of buttons) {
      const on = +button.dataset.head === state.head.index;
      button.setAttribute("aria-selected", on);
      button.tabIndex = on ? 0 : -1;
    }
  }

  // Draws a few at a time, so that many heads on long sequences do not block the page.
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

  for (const [id, [, choices]] of Object.entries(filters)) {
    for (const [value, text] of [["", "all"], ...choices]) $(id).add(new Option(text, value, false, String(value) === kept[id]));
    $(id).addEventListener("change", build);
  }
  $("kinds").hidden = filters.kind[1].length < 2;
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
  const chosen = () => Object.fromEntries(Object.keys(filters).map((id) => [id, $(id).value]));
  return { build, mark, draw, filters: chosen };
}
