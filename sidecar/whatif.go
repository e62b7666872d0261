package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

// whatIfFile has the counts of how the cluster would have slept, for a worker that is started after this one.
type whatIfFile string

// Load reads them; the zero value if there are none yet.
func (f whatIfFile) Load() (idle.WhatIf, error) {
	body, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return idle.WhatIf{}, nil
	}
	if err != nil {
		return idle.WhatIf{}, fmt.Errorf("read the counts of the sleeps: %w", err)
	}
	return idle.ParseWhatIf(body)
}

// Save replaces them.
func (f whatIfFile) Save(counts idle.WhatIf) error {
	body, err := json.Marshal(counts)
	if err != nil {
		return fmt.Errorf("encode the counts of the sleeps: %w", err)
	}
	if err := process.WriteFile(string(f), body); err != nil {
		return fmt.Errorf("write the counts of the sleeps: %w", err)
	}
	return nil
}
