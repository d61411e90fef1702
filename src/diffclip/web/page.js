// What the page does by itself, without asking the server: which map is shown, and how strongly.
window.diffclipShow = (text, method, opacity) => {
  for (const results of document.querySelectorAll(".dc-results")) {
    results.style.setProperty("--dc-opacity", opacity / 100);
    for (const part of results.querySelectorAll("[data-map]")) {
      const here = part.dataset.text === undefined || part.dataset.text === String(text);
      part.hidden = part.dataset.map !== method || !here;
    }
    for (const bar of results.querySelectorAll("[data-bar]")) {
      bar.classList.toggle("dc-chosen", bar.dataset.bar === String(text));
    }
  }
};
