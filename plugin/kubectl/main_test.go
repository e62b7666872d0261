package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// ours are the packages of this project that the program may link: none of them needs Linux.
var ours = []string{
	"plugin/clusterstate", "plugin/command", "plugin/estimate", "plugin/kubectl", "plugin/retry",
	"plugin/wake/plan", "plugin/wake/endpointslice", "sidecar/activity", "sidecar/contract", "sidecar/idle",
}

// Release archives are built for the same platforms (make test-archives), which shows that the program compiles there.
func TestProgram_linksNothingThatNeedsLinux(t *testing.T) {
	t.Parallel()
	const module = "github.com/cnpg-i/scale-to-zero/"
	for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"} {
		t.Run(platform, func(t *testing.T) {
			t.Parallel()
			system, architecture, _ := strings.Cut(platform, "/")
			list := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
			list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+architecture)
			out, err := list.Output()
			if err != nil {
				t.Fatalf("list the packages: %v", err)
			}
			for linked := range strings.FieldsSeq(string(out)) {
				own, found := strings.CutPrefix(linked, module)
				switch {
				case found && !slices.Contains(ours, own):
					t.Errorf("%s is linked", own)
				case strings.HasPrefix(linked, "github.com/mdlayher/"), strings.HasPrefix(linked, "github.com/jackc/"):
					t.Errorf("%s is linked, which only the sidecar needs", linked)
				case system == "windows" && linked == "golang.org/x/sys/unix":
					t.Errorf("%s is linked", linked)
				}
			}
		})
	}
}
