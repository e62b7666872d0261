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
	"sync"
	"time"
)

// archive is a compressed archive of one directory. A nil archive ignores texts and objects. Files are written as they
// are added, unless they are to be redacted: the names to replace are complete only at the end.
type archive struct {
	header  tar.Header // of every file, with the directory as its name
	redacts bool

	mutex      sync.Mutex
	out        io.Closer
	compressed *gzip.Writer
	written    *tar.Writer
	unredacted []file
	names      []string // of managed roles
	complete   bool
}

type file struct{ name, content string }

func newArchive(out io.WriteCloser, directory string, at time.Time, redacts bool) *archive {
	compressed := gzip.NewWriter(out)
	return &archive{
		header: tar.Header{Name: directory, Mode: 0o600, ModTime: at}, redacts: redacts,
		out: out, compressed: compressed, written: tar.NewWriter(compressed),
	}
}

// add adds a file, unless it is empty. close returns the error of a write that failed.
func (a *archive) add(f file) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.redacts {
		a.unredacted = append(a.unredacted, f)
	} else if f.content != "" {
		header := a.header
		header.Name, header.Size = header.Name+"/"+f.name, int64(len(f.content))
		_ = a.written.WriteHeader(&header)
		_, _ = io.WriteString(a.written, f.content)
	}
}

// addText adds a text without what may be a secret.
func (a *archive) addText(name, text string) {
	var cleaned strings.Builder
	for line := range strings.Lines(text) {
		cleaned.WriteString(cleanText(strings.TrimSuffix(line, "\n")) + "\n")
	}
	if a != nil {
		a.add(file{name, cleaned.String()})
	}
}

// addJSON adds an object without what may be a secret.
func (a *archive) addJSON(name string, object any) {
	if a != nil {
		var indented bytes.Buffer
		body, _ := json.Marshal(object) // it was JSON, or other commands print it as such
		_ = json.Indent(&indented, []byte(cleanText(string(body))), "", "  ")
		a.add(file{name, indented.String()})
	}
}

// close writes what is not written yet, and says whether all could be.
func (a *archive) close() error {
	a.redacts = false
	redact(a.unredacted, a.names)
	for _, f := range a.unredacted {
		a.add(f)
	}
	err := a.written.Close()
	if err = cmp.Or(a.compressed.Close(), err, a.out.Close()); err != nil { // the former says why
		return fmt.Errorf("write the archive: %w", err)
	}
	a.complete = true
	return nil
}

// leftOut is in the place of a value that may be a secret.
const leftOut = "(left out)"

var (
	// secretVariable matches the names of environment variables that may hold a secret, secretKey those of other values.
	secretVariable = regexp.MustCompile(`(?i)pass|token|key|secret|credential`)
	secretKey      = regexp.MustCompile(`(?i)(password|passphrase|token|secret_?key|api_?key|access_?key)$`)
	// textKey matches the keys of SQL that a person writes, but not of references to Secrets, and the annotation that
	// repeats the object.
	textKey = regexp.MustCompile(
		`^(post(Init(Application|Template)?|ImportApplication)SQL|kubectl\.kubernetes\.io/last-applied-configuration)$`,
	)
	// secretText match passwords in text: in conninfo, flags and JSON, in SQL, and in URLs, of which those of HTTP may
	// have a token as the user's name. A value whose closing quote is missing ends with the text.
	secretText = []*regexp.Regexp{
		regexp.MustCompile(`(?is)(pass(?:word|wd|phrase)(?:\\?["']?\s*=|\\?["']\s*:)\s*)` +
			`(?:\\?"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.|'')*'?|\S+)()`),
		regexp.MustCompile(`(?is)(password\s+(?:E|U&)?)'(?:[^'\\]|\\.|'')*'?()`),
		regexp.MustCompile(`(?i)(https?://)[^/?#\s"]+(@)`),
		regexp.MustCompile(`(://[^/?#\s":]*:)[^/?#\s"]*(@)`),
	}
)

// cleanText replaces in a text, which may be a JSON object after the time, what may be a secret.
func cleanText(text string) string {
	var object map[string]any
	if at := strings.Index(text, "{"); at >= 0 && json.Unmarshal([]byte(text[at:]), &object) == nil {
		before, isValue := strings.CutSuffix(cleanText(text[:at]+"{"), "{") // else it is that of a secret
		var out strings.Builder
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false) // names are as they are everywhere
		if _ = encoder.Encode(clean(object)); isValue {
			return before + strings.TrimSpace(out.String())
		}
	}
	for _, secret := range secretText {
		text = secret.ReplaceAllString(text, "${1}"+leftOut+"${2}")
	}
	return text
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
			secret := isText && (secretKey.MatchString(key) || key == "value" && secretVariable.MatchString(name))
			if value[key] = clean(inner); secret || textKey.MatchString(key) {
				value[key] = leftOut
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

// redact replaces addresses, the given names, and the names of users and databases found in the files, in contents and
// file names. The same original always becomes the same word.
func redact(files []file, given []string) {
	words, addresses, alternatives := map[string]string{}, map[string]string{}, []string{}
	for _, f := range files {
		for _, match := range names.FindAllStringSubmatch(f.content, -1) {
			given = append(given, strings.Join(match[1:], ""))
		}
	}
	for _, name := range given {
		if words[name] == "" && !slices.Contains(common, name) {
			words[name] = "name-" + strconv.Itoa(len(words)+1)
			alternatives = append(alternatives, regexp.QuoteMeta(name))
		}
	}
	slices.SortFunc(alternatives, func(a, b string) int { return len(b) - len(a) }) // the longest wins
	// \b knows only ASCII, and no sign as the first or last character of a name
	const beside = `[^\p{L}\p{N}_]`
	known := regexp.MustCompile(`(?:^|` + beside + `)(` + strings.Join(alternatives, "|") + `)(?:$|` + beside + `)`)
	addressWord := func(found string) string {
		address, err := netip.ParseAddr(strings.ReplaceAll(found, "-", "."))
		if err != nil || address.IsLoopback() || address.IsUnspecified() {
			return found
		}
		key := address.Unmap().String()
		addresses[key] = cmp.Or(addresses[key], "address-"+strconv.Itoa(len(addresses)+1))
		return addresses[key]
	}
	redacted := func(text string) string {
		var out strings.Builder
		at := known.FindStringSubmatchIndex(text)
		for ; at != nil && len(words) != 0; at = known.FindStringSubmatchIndex(text) {
			out.WriteString(text[:at[2]] + words[text[at[2]:at[3]]])
			text = text[at[3]:] // with the character beside the name, which may be that of the next one as well
		}
		text = out.String() + text
		for _, like := range addressLike {
			text = like.ReplaceAllStringFunc(text, addressWord)
		}
		return text
	}
	for i := range files {
		files[i] = file{redacted(files[i].name), redacted(files[i].content)}
	}
}
