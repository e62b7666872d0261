// Package intern has objects that hold equal strings share the memory of one.
package intern

import (
	"strings"
	"sync"
)

// remembered bounds what is known: anybody may bring texts that nobody else has, over months.
const remembered = 1 << 14

var (
	mutex sync.Mutex
	known = map[string]string{}
)

// String is the only copy in memory of a text that many objects hold. The package unique would forget a text at the next garbage
// collection, since only its handles keep it known and an object of Kubernetes has a place for the text alone: what then changes one
// by one, as a fleet's objects do all the time, would have a copy each.
//
// A text of one or two objects is better left alone: to be known it takes more than it does itself.
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
		clear(known) // what is common is soon known again
	}
	text = strings.Clone(text) // it may be a part of another, which it would keep in memory
	known[text] = text
	return text
}
