package docs

import (
	"regexp"
	"testing"
)

// banned are constructions that a native technical writer does not use, each with what to write instead.
var banned = map[string]string{
	`, since (the|a|an|it|its|no|only|they|these|this|that|there|nothing|each|all|kubectl)\b`: "because",
	`\b[Ss]omebody\b`:    "a user, a client, another field manager",
	`\b[Ww]hoever\b`:     "the one who is meant",
	`\b(go|goes) on\b`:   "keeps, continues",
	`\bnot understood\b`: "invalid",
}

func TestPages_arePlainEnglish(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		for construction, instead := range banned {
			for _, found := range regexp.MustCompile(`.{0,40}(`+construction+`).{0,40}`).FindAllString(p.text, -1) {
				t.Errorf("%s: %q: write %s", p.path, found, instead)
			}
		}
	}
}
