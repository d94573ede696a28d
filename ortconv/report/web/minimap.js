"use strict";

/* The whole picture, small, with a frame around the visible part. */
class MiniMap {
  constructor(picture, canvas) {
    Object.assign(this, { picture, canvas, base: document.createElement("canvas") });
    const move = (e) => {
      const box = canvas.getBoundingClientRect(), { view } = picture;
      view.x = (e.clientX - box.left) / this.sx - view.w / 2;
      view.y = (e.clientY - box.top) / this.sy - view.h / 2;
      picture.show();
    };
    canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); move(e); });
    canvas.addEventListener("pointermove", (e) => { if (e.buttons) move(e); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.redraw(); this.show(); });
  }

  redraw() { this.stale = true; }

  /* Draws the boxes once for each arrangement. A tall graph is squeezed. */
  paint() {
    const { width, height, items } = this.picture.placed, room = this.picture.svg;
    const most = Math.min(room.clientHeight * 0.42, 320), wide = Math.min(room.clientWidth * 0.18, 90);
    const scale = Math.min(wide / width, Math.max(most / height, Math.min(0.02, wide / width)));
    const w = Math.max(Math.round(width * scale), 26), h = Math.min(Math.max(Math.round(height * scale), 26), Math.round(most));
    Object.assign(this, { sx: w / width, sy: h / height, stale: false });
    for (const each of [this.canvas, this.base]) { each.width = w; each.height = h; }
    const style = getComputedStyle(this.picture.frame), ink = this.base.getContext("2d");
    const color = (name) => style.getPropertyValue(`--${name}`);
    const fills = { accelerator: color("good"), cpu: color("poor"), mixed: color("soft") };
    for (let i = 0; i < items.length;) {
      const { id, x, y, w: iw, h: ih, end } = items[i];
      const inside = end > i + 1, fine = ih * this.sy > 6;
      ink.globalAlpha = inside && fine ? 0.18 : 0.85;
      ink.fillStyle = fills[this.picture.data.parts[id].kind] ?? color(this.picture.family(id) || "plain");
      ink.fillRect(x * this.sx, y * this.sy, Math.max(iw * this.sx, 1), Math.max(ih * this.sy, 1));
      i = inside && fine ? i + 1 : end;
    }
  }

  show() {
    const { view, placed: all, svg } = this.picture;
    const whole = view.w >= all.width && view.h >= all.height;
    this.canvas.hidden = whole;
    if (whole || !svg.clientWidth) return;
    if (this.stale) this.paint();
    const ink = this.canvas.getContext("2d"), { width, height } = this.canvas;
    ink.clearRect(0, 0, width, height);
    ink.drawImage(this.base, 0, 0);
    ink.strokeStyle = getComputedStyle(this.picture.frame).getPropertyValue("--accent");
    ink.lineWidth = 2;
    const x = Math.max(view.x * this.sx, 1), y = Math.max(view.y * this.sy, 1);
    ink.strokeRect(x, y, Math.max(Math.min((view.x + view.w) * this.sx, width - 1) - x, 2), Math.max(Math.min((view.y + view.h) * this.sy, height - 1) - y, 3));
  }
}
