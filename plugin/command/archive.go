package command

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// write writes an archive of one directory, and closes it.
func (c *collector) write(out io.WriteCloser, directory string, answer diagnosis, redacted bool, now time.Time) error {
	var text strings.Builder
	answer.text(&text)
	c.addText("findings.txt", text.String())
	c.addText("errors.txt", strings.Join(c.unread, "\n"))
	c.addJSON("versions.json", c.versions)
	if redacted {
		redact(c.files, c.roles)
	}
	compressed := gzip.NewWriter(out)
	archive := tar.NewWriter(compressed)
	var err error
	for _, f := range c.files {
		header := tar.Header{Name: directory + "/" + f.name, Mode: 0o600, Size: int64(len(f.content)), ModTime: now}
		err = cmp.Or(err, archive.WriteHeader(&header))
		_, failure := archive.Write(f.content)
		err = cmp.Or(err, failure)
	}
	if err = cmp.Or(err, archive.Close(), compressed.Close(), out.Close()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// file is a file of the archive.
type file struct {
	name    string
	content []byte
}

// leftOut is in the place of a value that may be a secret.
const leftOut = "(left out)"

var (
	// secretVariable matches the names of environment variables that may hold a secret, secretKey those of other values.
	secretVariable = regexp.MustCompile(`(?i)pass|token|key|secret|credential`)
	secretKey      = regexp.MustCompile(`(?i)^.*(password|passphrase|token|secret_?key|api_?key|access_?key)$`)
	// sqlKey matches the names of lists of SQL that a person writes; their references to Secrets stay.
	sqlKey = regexp.MustCompile(`^postInit(Application|Template)?SQL$`)
	// secretText match passwords in text: in conninfo, flags and JSON, in SQL, and in URLs, of which those of HTTP may have
	// a token as the user's name. A value whose closing quote is missing ends with the text.
	secretText = []*regexp.Regexp{
		regexp.MustCompile(`(?is)(pass(?:word|wd|phrase)(?:\\?["']?\s*=|\\?["']\s*:)\s*)` +
			`(?:\\?"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.|'')*'?|\S+)()`),
		regexp.MustCompile(`(?is)(password\s+(?:E|U&)?)'(?:[^'\\]|\\.|'')*'?()`),
		regexp.MustCompile(`(?i)(https?://)[^/?#\s"]+(@)`),
		regexp.MustCompile(`(://[^/?#\s":]*:)[^/?#\s"]*(@)`),
	}
)

// cleanText replaces in a text, which may be a JSON object, what may be a secret.
func cleanText(text string) string {
	var object map[string]any
	if json.Unmarshal([]byte(text), &object) == nil && object != nil {
		if body, err := encode(clean(object), ""); err == nil {
			return string(body)
		}
	}
	for _, secret := range secretText {
		text = secret.ReplaceAllString(text, "${1}"+leftOut+"${2}")
	}
	return text
}

// encode encodes JSON, in which names are as they are everywhere.
func encode(value any, indent string) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(value)
	return bytes.TrimSpace(out.Bytes()), err
}

// clean replaces in a decoded JSON what may be a secret.
func clean(value any) any {
	switch value := value.(type) {
	case string:
		return cleanText(value)
	case []any:
		for i := range value {
			value[i] = clean(value[i])
		}
	case map[string]any:
		name, _ := value["name"].(string)
		for key, inner := range value {
			_, isText := inner.(string)
			switch {
			case key == "kubectl.kubernetes.io/last-applied-configuration", sqlKey.MatchString(key): // the former as text again
				value[key] = leftOut
			case isText && (secretKey.MatchString(key) || key == "value" && secretVariable.MatchString(name)):
				value[key] = leftOut
			default:
				value[key] = clean(inner)
			}
		}
	}
	return value
}

var (
	// addressLike match addresses, among others; the name of a node may have one with hyphens.
	addressLike = []*regexp.Regexp{
		regexp.MustCompile(`\b[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f:.]*\b|[0-9A-Fa-f:]*::)`),
		regexp.MustCompile(`\b\d{1,3}(?:[.-]\d{1,3}){3}\b`),
	}
	// names match the names of users and databases in JSON, in the annotation about ignored sessions and in messages.
	names = regexp.MustCompile(`\b(?:user|username|usename|database|datname|dbname|owner)` +
		`(?:(?:\\?" ?: ?|=| )(?:"((?:[^"\\]|\\.)+)"|\\"((?:[^"\\]|\\{3}["\\])+)\\")|=([^\s"\\,;{}\[\]]+))`)
	// common are the names that are the same everywhere.
	common = []string{
		"postgres", "app", "streaming_replica", "cnpg_metrics_exporter", "cnpg_pooler_pgbouncer", "template0", "template1",
	}
)

// redact replaces addresses, and the names of users and databases besides the given ones, in the files and their names.
// The same one always becomes the same word.
func redact(files []file, given []string) {
	words, addresses := map[string]string{}, map[netip.Addr]string{}
	for _, f := range files {
		for _, match := range names.FindAllSubmatch(f.content, -1) {
			given = append(given, string(slices.Concat(match[1:]...)))
		}
	}
	for _, name := range given {
		if words[name] == "" && !slices.Contains(common, name) {
			words[name] = "name-" + strconv.Itoa(len(words)+1)
		}
	}
	alternatives := sorted(words)
	slices.SortStableFunc(alternatives, func(a, b string) int { return cmp.Compare(len(b), len(a)) }) // the longest wins
	for i := range alternatives {
		alternatives[i] = regexp.QuoteMeta(alternatives[i])
	}
	const beside = `[^\p{L}\p{N}_]` // \b knows only ASCII, and no sign as the first or last character of a name
	known := regexp.MustCompile(`(?:^|` + beside + `)(` + strings.Join(alternatives, "|") + `)(?:$|` + beside + `)`)
	redacted := func(text string) string {
		var out strings.Builder
		for len(words) != 0 {
			at := known.FindStringSubmatchIndex(text)
			if at == nil {
				break
			}
			out.WriteString(text[:at[2]] + words[text[at[2]:at[3]]])
			text = text[at[3]:] // with the character beside the name, which may be that of the next one as well
		}
		text = out.String() + text
		for _, like := range addressLike {
			text = like.ReplaceAllStringFunc(text, func(found string) string { return addressWord(found, addresses) })
		}
		return text
	}
	for i := range files {
		files[i] = file{redacted(files[i].name), []byte(redacted(string(files[i].content)))}
	}
}

// addressWord returns the word for an address, or the text itself if it is none, or one that says nothing.
func addressWord(text string, words map[netip.Addr]string) string {
	address, err := netip.ParseAddr(text)
	if err != nil {
		address, err = netip.ParseAddr(strings.ReplaceAll(text, "-", "."))
	}
	if err != nil || address.IsLoopback() || address.IsUnspecified() {
		return text
	}
	if words[address.Unmap()] == "" {
		words[address.Unmap()] = "address-" + strconv.Itoa(len(words)+1)
	}
	return words[address.Unmap()]
}
