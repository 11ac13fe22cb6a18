// The page in a file: its data stand in it.

const data = JSON.parse($("data").textContent);
data.weights = $("weights").textContent;
$("data").remove();
$("weights").remove();
unpacked(data).then(show).catch((error) => {
  document.querySelector("main").textContent =
    `This page could not be shown (it needs a browser of 2023 or newer): ${error.message}`;
});
