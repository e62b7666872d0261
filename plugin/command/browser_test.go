package command

import (
	"encoding/json"
	"html"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// measure puts into the page's title what the browser has made of it.
const measure = `<script>addEventListener("load", () => {
  const width = e => e.getBoundingClientRect().width
  document.title = JSON.stringify({
    bars: [...document.querySelectorAll(".bar span")].map(s => 100 * width(s) / width(s.parentElement)),
    shown: [...document.querySelectorAll("th")].filter(h => width(h) > 0 && h.innerText).length,
    loaded: performance.getEntriesByType("resource").length,
    wide: document.documentElement.scrollWidth - innerWidth,
  })
})</script></head>`

// The page is shown by a headless Chromium, on a screen and on a phone: each bar is as long as its cluster would have slept,
// nothing is loaded, and the page itself never scrolls sideways.
func TestReport_pageInABrowser(t *testing.T) {
	var browser string
	for _, name := range []string{"chromium", "google-chrome", "chromium-browser"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("no Chromium is installed")
	}
	page, err := os.ReadFile("testdata/counted-report.html")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n") // the first line is the command
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, []byte(strings.Replace(text, "</head>", measure, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]string{"on a screen": "1280,800", "on a phone": "500,800"} {
		t.Run(name, func(t *testing.T) {
			dump, err := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+t.TempDir(),
				"--window-size="+size, "--virtual-time-budget=5000", "--dump-dom", "file://"+file).Output()
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Bars          []float64
				Shown, Loaded int
				Wide          float64
			}
			title := regexp.MustCompile(`<title>(.*)</title>`).FindSubmatch(dump)
			if title == nil {
				t.Fatalf("the browser has no title in\n%s", dump)
			}
			if err := json.Unmarshal([]byte(html.UnescapeString(string(title[1]))), &got); err != nil {
				t.Fatalf("%v in %s", err, title[1])
			}
			if len(got.Bars) != 2 || math.Abs(got.Bars[0]-60) > 1 || math.Abs(got.Bars[1]-4.2) > 1 {
				t.Errorf("the bars are %.1f %% long, want 60 and 4.2", got.Bars)
			}
			if got.Shown != 9 || got.Loaded != 0 || got.Wide > 0 {
				t.Errorf("%d headings are shown, want 9; %d resources are loaded, want none; the page is %.0f pixels too wide",
					got.Shown, got.Loaded, got.Wide)
			}
		})
	}
}
