// flame: zoom, search and tooltips of a flame graph, in the SVG by itself or in a page.
// Every frame is <g class="f .."><title>label, place, shares</title><rect/><text/></g>; what a frame is, is read
// from the picture, so that the picture is whole without this script.
(function () {
    "use strict";
    var NS = "http://www.w3.org/2000/svg", CHAR = 6.65, PAD = 9;
    var EDGE = 1.25, FULL = 100 - 2 * EDGE; // percent of the picture: its margin, and what the root takes
    var svg = document.getElementById("flame"), graph = document.getElementById("graph");
    var field = document.getElementById("search"), reset = document.getElementById("reset");
    var matched = document.getElementById("matched"), tip = document.getElementById("tip");
    var frames = [], zoomed = null, shown = null;

    function make(name, parent) {
        return parent.appendChild(document.createElementNS(NS, name));
    }

    Array.prototype.forEach.call(graph.getElementsByClassName("f"), function (g) {
        var rect = g.getElementsByTagName("rect")[0], title = g.getElementsByTagName("title")[0];
        var lines = title.textContent.split("\n");
        frames.push({
            g: g, rect: rect, text: g.getElementsByTagName("text")[0], lines: lines, label: lines[0],
            x: parseFloat(rect.getAttribute("x")), w: parseFloat(rect.getAttribute("width")),
            y: parseFloat(rect.getAttribute("y"))
        });
        g.removeChild(title); // ours is shown instead
        g.frame = frames[frames.length - 1];
    });

    function label(f, px) {
        var room = Math.floor((px - PAD) / CHAR);
        var text = room < 3 ? "" : f.label.length <= room ? f.label : f.label.slice(0, room - 1) + "\u2026";
        if (!f.text && text) {
            f.text = make("text", f.g);
            f.text.setAttribute("dx", "4");
            f.text.setAttribute("y", f.y + 12.5);
        }
        if (f.text && f.text.textContent !== text)
            f.text.textContent = text;
        if (f.text)
            f.text.setAttribute("x", f.rect.getAttribute("x"));
    }

    // Frames of the zoomed one's subtree are stretched, those above it fill the width, the others are hidden.
    function layout() {
        var z = zoomed || {x: EDGE, w: FULL, y: -1}, width = svg.getBoundingClientRect().width;
        var close = 2e-5; // of the digits that are written
        frames.forEach(function (f) {
            var above = zoomed && f.y < z.y && f.x <= z.x + close && f.x + f.w >= z.x + z.w - close;
            var inside = f.y >= z.y && f.x >= z.x - close && f.x + f.w <= z.x + z.w + close;
            f.g.style.display = above || inside ? "" : "none";
            if (!above && !inside)
                return;
            var x = above ? EDGE : EDGE + (f.x - z.x) / z.w * FULL, w = above ? FULL : f.w / z.w * FULL;
            f.g.classList.toggle("above", !!above);
            f.rect.setAttribute("x", x + "%");
            f.rect.setAttribute("width", w + "%");
            label(f, w / 100 * width);
        });
        reset.disabled = !zoomed && !field.value;
    }

    function zoom(f) {
        zoomed = f && f.w < FULL - 1e-4 ? f : null;
        layout();
    }

    function pattern() {
        var text = field.value;
        if (!text)
            return null;
        try {
            return new RegExp(text, "i");
        } catch (e) {
            return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
        }
    }

    // What matches, counted once where a match stands below another.
    function search() {
        var re = pattern(), spans = [], sum = 0;
        frames.forEach(function (f) {
            var hit = re && re.test(f.label);
            f.g.classList.toggle("hit", !!hit);
            if (hit)
                spans.push(f);
        });
        graph.classList.toggle("searching", !!re);
        spans.sort(function (a, b) { return a.x - b.x || b.w - a.w; });
        var end = -1;
        spans.forEach(function (f) {
            if (f.x + f.w > end + 2e-5) {
                sum += f.x + f.w - Math.max(f.x, end);
                end = f.x + f.w;
            }
        });
        matched.textContent = re ? (sum / FULL * 100).toFixed(1) + "% matched" : "";
        layout();
    }

    function hideTip() {
        tip.style.display = "none";
        shown = null;
    }

    function showTip(f, event) {
        var box = svg.getBoundingClientRect(), longest = 0;
        if (shown !== f) {
            while (tip.lastChild)
                tip.removeChild(tip.lastChild);
            var back = make("rect", tip);
            var lines = f.lines.slice();
            if (zoomed && f.y >= zoomed.y)
                lines.push((f.w / zoomed.w * 100).toFixed(1) + "% of what is zoomed in");
            lines.forEach(function (line, i) {
                var text = make("text", tip);
                text.setAttribute("x", 10);
                text.setAttribute("y", 19 + i * 16);
                text.setAttribute("class", i === 0 ? "name" : "");
                text.textContent = line.length > 110 ? line.slice(0, 40) + "\u2026" + line.slice(-69) : line;
                longest = Math.max(longest, text.textContent.length);
            });
            tip.wide = longest * CHAR + 20;
            tip.tall = 16 * lines.length + 12;
            back.setAttribute("width", tip.wide);
            back.setAttribute("height", tip.tall);
            back.setAttribute("rx", 5);
            shown = f;
        }
        var x = event.clientX - box.left + 14, y = event.clientY - box.top + 18;
        if (x + tip.wide > box.width - 4)
            x = Math.max(4, box.width - tip.wide - 4);
        if (y + tip.tall > box.height - 4 || event.clientY + tip.tall + 24 > window.innerHeight)
            y = Math.max(4, event.clientY - box.top - tip.tall - 10);
        tip.setAttribute("transform", "translate(" + x + "," + y + ")");
        tip.style.display = "inline";
    }

    function frameOf(event) {
        for (var e = event.target; e && e !== graph; e = e.parentNode)
            if (e.frame)
                return e.frame;
        return null;
    }

    graph.addEventListener("click", function (event) {
        var f = frameOf(event);
        if (f)
            zoom(f);
        hideTip();
    });
    graph.addEventListener("mousemove", function (event) {
        var f = frameOf(event);
        if (f)
            showTip(f, event);
        else
            hideTip();
    });
    graph.addEventListener("mouseleave", hideTip);
    field.addEventListener("input", search);
    reset.addEventListener("click", function () {
        field.value = "";
        zoomed = null;
        search();
    });
    document.addEventListener("keydown", function (event) {
        if (event.key === "Escape")
            reset.click();
        else if (event.key === "/" && document.activeElement !== field) {
            event.preventDefault();
            field.focus();
        }
    });
    window.addEventListener("resize", layout);
    document.getElementById("bar").style.visibility = "visible";
    layout();
})();
