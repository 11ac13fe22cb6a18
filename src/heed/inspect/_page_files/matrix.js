// One head as a matrix with panning and zooming, for ten tokens or ten thousand.

function makeMatrix(data, state, focus, pin) {
  const canvas = document.querySelector("#matrix canvas"), box = canvas.parentElement, WIDEST = 38; // pixels of a cell
  let LEFT = 0, TOP = 0, longest = 0; // space for labels, and the longest label of a key
  let view = null; // the first visible column and row, and the zoom relative to a fitted view
  let cursor = null;

  const bar = () => $("zoom").offsetHeight + 8; // below the matrix
  const size = () => ({ width: Math.max(20, canvas.clientWidth - LEFT), height: Math.max(20, canvas.clientHeight - TOP - bar()) });
  const shape = () => state.head.whole;
  const font = (weight) => `${weight} 12px ${css("font-family")}`;

  // The size of a cell in the fitted view: square, unless that would make the few rows or columns of a long matrix too thin.
  function fitCells() {
    const { width, height } = size(), { T, S } = shape(), cell = Math.min(width / S, height / T, WIDEST);
    const thin = Math.max(T, S) > 4 * Math.min(T, S) ? Math.max(cell, 14) : cell;
    return [Math.min(width / S, thin), Math.min(height / T, thin)];
  }

  function fit() {
    view = cursor = null;
    const context = canvas.getContext("2d"), { rowTokens, keyTokens } = state.head.layer;
    context.font = font(600);
    const widest = (tokens) => tokens.reduce((most, token) => Math.max(most, context.measureText(formatToken(token)).width), 0);
    LEFT = Math.ceil(Math.min(110, widest(rowTokens))) + 12;
    longest = widest(keyTokens);
    TOP = Math.ceil(Math.min(110, longest)) + 12;
    fitHeight();
  }

  // Where the page scrolls, the matrix is as high as it needs to be.
  function fitHeight() {
    box.style.height = "";
    if (!narrow.matches) return;
    const { T, S } = shape(), most = 0.8 * innerHeight - TOP - bar();
    const cell = Math.min(size().width / S, WIDEST), least = Math.max(T, S) > 4 * Math.min(T, S) ? 14 : 0;
    box.style.height = `${Math.ceil(TOP + bar() + Math.min(most, T * Math.max(cell, least)))}px`;
  }

  function clampView() {
    const { width, height } = size(), { T, S } = shape(), least = fitCells();
    view ||= { x: 0, y: 0, zoom: 1 };
    view.zoom = Math.max(1, Math.min(view.zoom, WIDEST / Math.min(...least)));
    [view.sx, view.sy] = least.map((cell) => Math.min(WIDEST, cell * view.zoom));
    view.x = Math.max(0, Math.min(view.x, S - width / view.sx));
    view.y = Math.max(0, Math.min(view.y, T - height / view.sy));
    return view;
  }

  // Zooms about a fixed point of the matrix; 0 shows all.
  function zoom(by, [x, y] = [size().width / 2, size().height / 2]) {
    if (!by) fit();
    const before = { ...clampView() };
    view.zoom *= by || 1;
    const now = clampView();
    now.x = before.x + x / before.sx - x / now.sx;
    now.y = before.y + y / before.sy - y / now.sy;
    state.redraw();
  }

  function draw(active) {
    const ratio = devicePixelRatio || 1, context = clearCanvas(canvas), { T, S } = shape(), { x, y, sx, sy } = clampView();
    const { width, height } = size(), w = Math.min(width, (S - x) * sx), h = Math.min(height, (T - y) * sy);
    $("zoom").style.left = `${LEFT}px`;
    $("zoom").style.top = `${TOP + h + 8}px`;
    // A finger on a matrix that is seen whole scrolls the page.
    canvas.style.touchAction = view.zoom > 1 ? "none" : "pan-y";
    const W = Math.max(1, Math.round(w * ratio)), H = Math.max(1, Math.round(h * ratio));
    const image = raster(context, state.head, W, H, x, y, sx * ratio, sy * ratio, state.paint(state.head));
    context.putImageData(image, Math.round(LEFT * ratio), Math.round(TOP * ratio));
    context.textBaseline = "middle";
    // Labels every token, or every second, fifth, ... as space allows.
    const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
    const layer = state.head.layer, on = active || {}, muted = css("--muted"), plain = font(400), bold = font(600);
    const label = (text, room) => {
      let cut = formatToken(text);
      if (context.measureText(cut).width <= room) return cut;
      while (cut && context.measureText(`${cut}…`).width > room) cut = cut.slice(0, -1);
      return `${cut}…`;
    };
    const axis = (count, first, scale, length, chosen, name, write) => {
      const step = steps.find((n) => n * scale >= 13) || 10000;
      const put = (i, colour, weight) => {
        const at = (i + 0.5 - first) * scale;
        if (at < 0 || at > length) return;
        context.fillStyle = colour;
        context.font = weight;
        write(i, at);
      };
      for (let i = Math.ceil(first / step - 0.5) * step; i < count; i += step) {
        if (chosen === undefined || Math.abs(i - chosen) * scale >= 13) put(i, muted, plain);
      }
      if (chosen !== undefined) put(chosen, css(name), bold);
    };
    context.textAlign = "right";
    axis(T, y, sy, h, on.row, "--row", (i, at) => context.fillText(label(layer.rowTokens[i], LEFT - 10), LEFT - 6, TOP + at));
    const flat = longest < sx - 4;
    context.textAlign = flat ? "center" : "left";
    axis(S, x, sx, w, on.key, "--key", (j, at) => {
      context.save();
      context.translate(LEFT + at, TOP - (flat ? 11 : 6));
      if (!flat) context.rotate(-Math.PI / 2);
      context.fillText(label(layer.keyTokens[j], TOP - 10), 0, 0);
      context.restore();
    });
    context.beginPath();
    context.rect(LEFT - 1, TOP - 1, w + 2, h + 2);
    context.clip();
    // A light line between two dark ones is visible on every colour of the map.
    const frame = (a, b, c, d) => {
      for (const [colour, line] of [["rgba(0, 0, 0, 0.75)", 3], ["#ffffff", 1.25]]) {
        context.strokeStyle = colour;
        context.lineWidth = line;
        context.strokeRect(LEFT + a, TOP + b, c, d);
      }
    };
    if (on.row !== undefined) frame(0, (on.row - y) * sy, w, Math.max(sy, 2));
    if (on.key !== undefined) frame((on.key - x) * sx, 0, Math.max(sx, 2), h);
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left - LEFT, event.clientY - box.top - TOP];
  }

  function cell(event) {
    const { x, y, sx, sy } = clampView(), { T, S } = shape(), [px, py] = place(event);
    const key = Math.floor(x + px / sx), row = Math.floor(y + py / sy);
    // Over the labels of an axis: the whole row or column of the token.
    if (px < 0 && py < 0) return null;
    if (row >= T || key >= S || py > size().height || px > size().width) return null;
    return px < 0 ? { row } : py < 0 ? { key } : { row, key };
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, view: { ...clampView() }, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return focus(cell(event));
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    drag.moved ||= Math.hypot(dx, dy) > 3;
    if (!drag.moved) return;
    canvas.classList.add("drag");
    view = { ...drag.view, x: drag.view.x - dx / drag.view.sx, y: drag.view.y - dy / drag.view.sy };
    state.redraw();
  });
  const end = (event) => {
    if (drag && !drag.moved && event.type === "pointerup") { cursor = cell(event); pin(cursor); }
    drag = null;
    canvas.classList.remove("drag");
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => focus(null));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-Math.max(-80, Math.min(80, event.deltaY)) / 250), place(event));
    focus(cell(event));
  }, { passive: false });

  function follow({ row, key }) {
    const { width, height } = size(), { sx, sy } = clampView();
    if (key !== undefined) view.x = Math.min(key, Math.max(view.x, key + 1 - width / sx));
    if (row !== undefined) view.y = Math.min(row, Math.max(view.y, row + 1 - height / sy));
  }
  const zooms = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, "0": 0 };
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }, { T, S } = shape();
    if (event.key in moves) {
      const [down, right] = cursor ? moves[event.key] : [0, 0], at = cursor || { row: 0, key: 0 };
      cursor = {
        row: Math.max(0, Math.min(T - 1, (at.row ?? 0) + down)),
        key: Math.max(0, Math.min(S - 1, (at.key ?? 0) + right)),
      };
      pin(cursor);
    } else if (event.key in zooms) zoom(zooms[event.key]);
    else return;
    event.preventDefault();
  });
  $("zoom").addEventListener("click", (event) => {
    if (event.target.dataset.zoom !== undefined) zoom(+event.target.dataset.zoom);
  });
  new ResizeObserver(() => state.redraw()).observe(canvas);
  return { draw, fit, fitHeight, follow };
}
