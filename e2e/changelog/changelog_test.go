package changelog

import "testing"

const text = `# Changelog

## [Unreleased]

### Added

- Something new.

## [1.1.0] - 2026-02-01

### Fixed

- A mistake ([#7](https://example.com/7)).

## [1.1.0-rc.1] - 2026-01-20

## [1.0.0] - 2026-01-01

- The first.
`

func TestSection_isThatOfTheVersion(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, version, want string }{
		{"it ends where the next version begins", "v1.1.0", "### Fixed\n\n- A mistake ([#7](https://example.com/7)).\n"},
		{"the last goes to the end", "v1.0.0", "- The first.\n"},
		{"an empty section is none", "v1.1.0-rc.1", ""},
		{"a part of a version is none", "v1.1", ""},
		{"what is not released has no version", "vUnreleased2", ""},
		{"the v is part of a version", "1.0.0", ""},
	} {
		got, err := Section(text, row.version)
		if got != row.want || (err == nil) != (row.want != "") {
			t.Errorf("%s: %q (%v), want %q", row.rule, got, err, row.want)
		}
	}
}
