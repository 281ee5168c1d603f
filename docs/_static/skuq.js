// A formula that is wider than the page scrolls: the keyboard must reach it, as it reaches tables.
const reachable = () => document.querySelectorAll("div.math").forEach((formula) => {
  const scrolls = formula.scrollWidth > formula.clientWidth;
  if (scrolls) formula.setAttribute("tabindex", "0");
  else formula.removeAttribute("tabindex");
});
window.addEventListener("load", reachable);
window.addEventListener("resize", reachable);
