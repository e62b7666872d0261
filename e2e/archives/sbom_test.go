package archives

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// read is an SBOM of a release.
func read(t *testing.T, path string) spdx {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(body)))
	decoder.DisallowUnknownFields()
	var document spdx
	if err := decoder.Decode(&document); err != nil {
		t.Fatal(err)
	}
	return document
}

// namesWhatIsLinked checks that the SBOM of an archive, which holds these files, names the modules whose licences are among
// them, and Go's own library: the first come from the program, the others from its sources.
func namesWhatIsLinked(t *testing.T, release Release, archive Archive, files map[string]entry) {
	t.Helper()
	document := read(t, filepath.Join(release.Output, archive.SBOM))
	if got := document.Packages[0]; got.File != archive.Name || got.Checksums[0].Value != archive.SHA256 {
		t.Errorf("it is about %s with the checksum %s, not about %s with %s", got.File, got.Checksums[0].Value, archive.Name, archive.SHA256)
	}
	named := map[string]bool{}
	for _, p := range document.Packages[1:] {
		if p.Version == "" {
			t.Errorf("%s has no version", p.Name)
		}
		named[p.Name] = true
	}
	if last := document.Packages[len(document.Packages)-1]; last.Name != "stdlib" || "go"+last.Version != runtime.Version() {
		t.Errorf("Go's library is %s %s, want that of %s", last.Name, last.Version, runtime.Version())
	}
	delete(named, "stdlib")
	licensed := map[string]bool{}
	for name := range files {
		below, is := strings.CutPrefix(name, "licenses/")
		if !is || below == "LICENSE.go" {
			continue
		}
		for directory := filepath.Dir(below); ; directory = filepath.Dir(directory) { // a package may have a licence of its own
			if directory == "." {
				t.Errorf("the SBOM does not name the module of %s", name)
				break
			}
			if named[directory] {
				licensed[directory] = true
				break
			}
		}
	}
	if difference := cmp.Diff(slices.Sorted(maps.Keys(licensed)), slices.Sorted(maps.Keys(named))); difference != "" {
		t.Errorf("the SBOM names modules that have no licence in the archive (-licensed +named):\n%s", difference)
	}
}

// What SPDX 2.3 demands of a document (https://spdx.github.io/spdx-spec/v2.3/conformance/) is there, and every reference leads
// to something.
func TestSBOM_isComplete(t *testing.T) {
	t.Parallel()
	release := Release{Version: "v1.2.3", Repository: repository}
	archive := Archive{Platform: Platform{"linux", "arm64"}, Name: "kubectl.tar.gz", SHA256: strings.Repeat("0a", 32)}
	body, err := release.sbom(archive, []debug.Module{{Path: "example.org/a", Version: "v1.0.0"}, {Path: "stdlib", Version: "1.26.4"}})
	if err != nil {
		t.Fatal(err)
	}
	var document spdx
	if err := json.Unmarshal(body, &document); err != nil {
		t.Fatal(err)
	}
	if document.Version != "SPDX-2.3" || document.DataLicense != "CC0-1.0" || document.ID != "SPDXRef-DOCUMENT" || document.Name == "" ||
		!strings.HasPrefix(document.Namespace, repository+"/releases/download/v1.2.3/kubectl.tar.gz.spdx.json/") || strings.Contains(document.Namespace, "#") ||
		document.Creation.Created != "1980-01-01T00:00:00Z" || len(document.Creation.Creators) == 0 {
		t.Errorf("the document is %+v", document)
	}
	ids := map[string]bool{document.ID: true}
	for _, p := range document.Packages {
		if p.Name == "" || p.Download == "" || ids[p.ID] || len(p.References) != 1 || p.References[0].Locator == "" {
			t.Errorf("a package is %+v", p)
		}
		ids[p.ID] = true
	}
	related := map[string]string{}
	for _, r := range document.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("a relationship leads nowhere: %+v", r)
		}
		related[r.Related] = r.Type
	}
	want := map[string]string{"SPDXRef-archive": "DESCRIBES", "SPDXRef-module-1": "CONTAINS", "SPDXRef-module-2": "CONTAINS"}
	if difference := cmp.Diff(want, related); difference != "" {
		t.Errorf("(-want +got):\n%s", difference)
	}
}
