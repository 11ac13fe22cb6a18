// The page in a file, which contains its data.

const data = JSON.parse($("data").textContent);
data.weights = $("weights").textContent;
$("data").remove();
$("weights").remove();
unpack(data).then(show).catch((error) => {
  document.querySelector("main").textContent =
    `This page could not be shown (it needs a browser of 2023 or newer): ${error.message}`;
});
