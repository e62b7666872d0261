package config

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	for _, name := range []string{"crt", "key", "client"} {
		if err := os.WriteFile(filepath.Join(directory, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := map[string]string{
		"SIDECAR_IMAGE": "example.org/team/sidecar:v1", "SERVER_ADDRESS": ":9090", "SERVER_CERT": filepath.Join(directory, "crt"),
		"SERVER_KEY": filepath.Join(directory, "key"), "CLIENT_CERT": filepath.Join(directory, "client"),
	}
	for _, row := range []struct {
		rule      string
		change    map[string]string
		arguments []string
		bad       []string
	}{
		{"good settings are taken", nil, nil, nil},
		{"a flag wins over the environment", map[string]string{"LOG_LEVEL": "loud"}, []string{"--log-level=debug"}, nil},
		{"an image is needed", map[string]string{"SIDECAR_IMAGE": ""}, nil, []string{"SIDECAR_IMAGE"}},
		{"an image has no spaces", map[string]string{"SIDECAR_IMAGE": "a b"}, nil, []string{"SIDECAR_IMAGE"}},
		{"a digest is an image", map[string]string{"SIDECAR_IMAGE": "localhost:5000/s@sha256:" + strings.Repeat("a", 64)}, nil, nil},
		{"a request is at most its limit", map[string]string{"SIDECAR_CPU_REQUEST": "2"}, nil, []string{"SIDECAR_CPU_REQUEST"}},
		{"a quantity is positive", map[string]string{"SIDECAR_MEMORY_LIMIT": "0", "SIDECAR_MEMORY_REQUEST": "-1"}, nil, []string{"SIDECAR_MEMORY_LIMIT", "SIDECAR_MEMORY_REQUEST"}},
		{"an empty variable is no default", map[string]string{"SIDECAR_CPU_LIMIT": ""}, nil, []string{"SIDECAR_CPU_LIMIT"}},
		{"somebody must be able to reach it", map[string]string{"SERVER_ADDRESS": ""}, nil, []string{"SERVER_ADDRESS"}},
		{"a socket alone is enough", map[string]string{"SERVER_ADDRESS": "", "PLUGIN_SOCKET_DIR": directory}, nil, nil},
		{"certificates must exist", map[string]string{"SERVER_KEY": "/none", "CLIENT_CERT": ""}, nil, []string{"SERVER_KEY", "CLIENT_CERT"}},
		{"every bad setting is named at once", map[string]string{"LOG_LEVEL": "loud", "METRICS_ADDRESS": "8080", "CUSTOM_CNPG_GROUP": "!"}, nil, []string{"LOG_LEVEL", "METRICS_ADDRESS", "CUSTOM_CNPG_GROUP"}},
		{"words that are no flags are not passed over", nil, []string{"extra"}, []string{"extra"}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			lookup := func(name string) (string, bool) {
				if value, set := row.change[name]; set {
					return value, true
				}
				value, set := good[name]
				return value, set
			}
			config, err := Parse(row.arguments, lookup, io.Discard)
			if len(row.bad) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if config.SidecarImage == "" || !config.KeepsGuaranteed() {
					t.Errorf("got %+v", config)
				}
				return
			}
			if err == nil {
				t.Fatal("bad settings were taken")
			}
			for _, name := range row.bad {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("the message does not name %s: %v", name, err)
				}
				if value, set := row.change[name]; set && !strings.Contains(err.Error(), `"`+value+`"`) {
					t.Errorf("the message does not show the value %q: %v", value, err)
				}
			}
		})
	}
}
