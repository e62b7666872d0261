// Package intern makes objects with equal strings share the memory of one.
package intern

import (
	"strings"
	"sync"
)

// remembered limits the number of known strings: over months, users may add any number of strings that occur only once.
const remembered = 1 << 14

var (
	mutex sync.Mutex
	known = map[string]string{}
)

// String returns the shared copy of a string that many objects contain. Package unique is no replacement: only its handles keep
// a string known, and a Kubernetes object has no field for a handle. It would forget the string at the next garbage collection,
// and objects that change one by one, as a fleet's do all the time, would then each have a copy.
//
// Do not use it for strings of one or two objects: a known string takes more memory than the string itself.
func String(text string) string {
	if text == "" {
		return ""
	}
	mutex.Lock()
	defer mutex.Unlock()
	if one, ok := known[text]; ok {
		return one
	}
	if len(known) >= remembered {
		clear(known) // common strings are soon known again
	}
	text = strings.Clone(text) // it may be a substring, which would keep the whole string in memory
	known[text] = text
	return text
}
