// Measures the page in each frame and writes what it found, as JSON, into the element "told".
"use strict";

function luminance([red, green, blue]) {
  const [r, g, b] = [red, green, blue].map((part) => {
    const share = part / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// WCAG 2.1: (lighter + 0.05) / (darker + 0.05)
function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function parts(color) {
  return color.match(/[\d.]+/g).map(Number);
}

function behind(view, element) {
  for (let node = element; node; node = node.parentElement) {
    const color = parts(view.getComputedStyle(node).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
}

function picture(svg) {
  const box = svg.getBoundingClientRect();
  const view = svg.viewBox.baseVal;
  const cut = [...svg.querySelectorAll("text")].filter((text) => {
    const own = text.getBBox();
    return own.x < -0.5 || own.y < -0.5 || own.x + own.width > view.width + 0.5 || own.y + own.height > view.height + 0.5;
  });
  const words = [...svg.querySelectorAll("text")];
  const crossed = words.filter((text, i) => words.slice(i + 1).some((other) => {
    const [a, b] = [text.getBBox(), other.getBBox()];
    return a.x + 1 < b.x + b.width && b.x + 1 < a.x + a.width && a.y + 3 < b.y + b.height && b.y + 3 < a.y + a.height;
  }));
  return {
    name: svg.querySelector("title").textContent,
    width: box.width,
    height: box.height,
    shapes: svg.querySelectorAll("path, rect, circle").length,
    words: words.length,
    size: Math.min(...words.map((text) => parseFloat(getComputedStyle(text).fontSize) * box.width / view.width)),
    cut: cut.map((text) => text.textContent),
    crossed: crossed.map((text) => text.textContent),
  };
}

function faint(view, page) {
  const found = [];
  for (const element of page.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || ["title", "desc", "STYLE"].includes(element.tagName)) continue;
    const style = view.getComputedStyle(element);
    const color = parts(element.tagName === "text" ? style.fill : style.color);
    const ratio = contrast(color, behind(view, element));
    if (ratio < 4.5) found.push([element.textContent.trim().slice(0, 40), ratio]);
  }
  for (const element of page.querySelectorAll(".picture .line, .picture .bar, .picture .dot, .picture .ring")) {
    const style = view.getComputedStyle(element);
    const ratio = contrast(parts(style.fill === "none" ? style.stroke : style.fill), behind(view, element));
    if (ratio < 3) found.push([element.getAttribute("class"), ratio]);
  }
  return found;
}

function measure(frame) {
  const [view, page] = [frame.contentWindow, frame.contentDocument];
  const width = page.documentElement.clientWidth;
  const visible = [...page.querySelectorAll("body *")].filter((element) => element.checkVisibility());
  const isCut = (element) => {
    const box = element.getBoundingClientRect();
    const inline = view.getComputedStyle(element).display === "inline" || element.closest("svg");
    return box.right > width + 1 || box.left < -1 || (!inline && element.scrollWidth > element.clientWidth + 1);
  };
  return {
    width,
    scrolls: page.documentElement.scrollWidth,
    background: view.getComputedStyle(page.body).backgroundColor,
    pictures: [...page.querySelectorAll("svg.picture")].map(picture),
    figures: [...page.querySelectorAll("figure")].map((figure) => ({
      height: figure.getBoundingClientRect().height,
      breaks: view.getComputedStyle(figure).breakInside,
    })),
    cut: visible.filter(isCut).map((element) => `${element.tagName}: ${element.textContent.trim().slice(0, 60)}`),
    faint: faint(view, page),
  };
}

addEventListener("load", () => {
  document.getElementById("told").textContent = JSON.stringify(
    [...document.querySelectorAll("iframe")].map(measure));
});
