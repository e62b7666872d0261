package archives

import (
	"bytes"
	"fmt"
	"text/template"
)

// Krew is the name of the plugin at krew, and of its manifest without the ending. kubectl takes a dash for an underscore, so that
// it is called by both.
const Krew = "scale-to-zero"

// manifest is read by krew (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/).
var manifest = template.Must(template.New("manifest").Parse(`apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: {{.Name}}
spec:
  version: {{.Version}}
  homepage: {{.Repository}}
  shortDescription: Sleep, wake and explain CloudNativePG clusters
  description: |
    Shows which CloudNativePG clusters sleep and what keeps the others awake, puts them to sleep, wakes them and keeps them awake.
    The clusters must list the CNPG-I plugin cnpg-i-scale-to-zero.xata.io.
  caveats: |
    For completion of the arguments, put {{.Completion}} of the archive into a directory of PATH.
  platforms:
{{- range .Archives}}
    - selector:
        matchLabels:
          os: {{.OS}}
          arch: {{.Architecture}}
      uri: {{$.Repository}}/releases/download/{{$.Version}}/{{.Name}}
      sha256: {{.SHA256}}
      bin: {{.Program}}
{{- end}}
`))

// Manifest is that for krew, of archives that are files of the release.
func (r Release) Manifest(archives []Archive) ([]byte, error) {
	var text bytes.Buffer
	err := manifest.Execute(&text, struct {
		Name, Version, Repository, Completion string
		Archives                              []Archive
	}{Krew, r.Version, r.Repository, completion, archives})
	if err != nil {
		return nil, fmt.Errorf("write the manifest for krew: %w", err)
	}
	return text.Bytes(), nil
}
