package gateway

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"unicode"
)

// tokenPrefix lets people, and programs that look for secrets in the wrong places,
// see what a token is.
const tokenPrefix = "wedgw_"

// anything, in a pattern, stands for every flow, or transition.
const anything = "*"

// Tokens says who may do what. It is read from a file, one JSON object a line:
//
//	{"name":"hotel-1","sha256":"…","allow":["travel/book_hotel"],"role":"hotel_worker"}
//
// Empty lines, and those that begin with #, say nothing.
type Tokens struct {
	path  string
	table atomic.Pointer[table]
}

// table has the grants by the beginnings of their tokens' hashes: what is found so
// is compared in a time that tells nothing.
type table map[[8]byte][]*grant

// grant is what the bearer of a token may do.
type grant struct {
	name    string
	hash    [sha256.Size]byte
	role    string // of the database; "": the gateway's own
	allow   []pattern
	metrics bool
}

// pattern is a flow and a transition, each as it is named, or any.
type pattern struct {
	flow, transition       string
	anyFlow, anyTransition bool
}

// entry is a grant as the file has it.
type entry struct {
	Name    string   `json:"name"`
	SHA256  string   `json:"sha256"`
	Allow   []string `json:"allow,omitempty"`
	Role    string   `json:"role,omitempty"`
	Metrics bool     `json:"metrics,omitempty"`
}

// OpenTokens reads a file of tokens.
func OpenTokens(path string) (*Tokens, error) {
	t := &Tokens{path: path}
	if err := t.Reload(); err != nil {
		return nil, err
	}
	return t, nil
}

// Reload reads the file again. If that fails everything stays as it was.
func (t *Tokens) Reload() error {
	f, err := os.Open(t.path)
	if err != nil {
		return fmt.Errorf("read the tokens: %w", err)
	}
	defer f.Close()
	read, err := readTokens(f)
	if err != nil {
		return fmt.Errorf("read the tokens: %s, %w", t.path, err)
	}
	t.table.Store(&read)
	return nil
}

// Len returns how many tokens there are.
func (t *Tokens) Len() (n int) {
	for _, grants := range *t.table.Load() {
		n += len(grants)
	}
	return n
}

func readTokens(r io.Reader) (table, error) {
	read, names := make(table), make(map[string]bool)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		g, err := parseGrant(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if names[g.name] {
			return nil, fmt.Errorf("line %d: another token has the name %q", n, g.name)
		}
		names[g.name] = true
		if read.find(g.hash) != nil {
			return nil, fmt.Errorf("line %d: another line is of the same token", n)
		}
		begin := [8]byte(g.hash[:])
		read[begin] = append(read[begin], g)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return read, nil
}

func parseGrant(line []byte) (*grant, error) {
	var e entry
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return nil, fmt.Errorf("not what `wedctl gateway token` prints: %w", err)
	}
	if dec.More() {
		return nil, errors.New("more than one JSON object")
	}
	g, err := newGrant(e)
	if err != nil {
		return nil, err
	}
	hash, err := hex.DecodeString(e.SHA256)
	if err != nil || len(hash) != len(g.hash) {
		return nil, errors.New("sha256 is not 64 hexadecimal digits")
	}
	copy(g.hash[:], hash)
	return g, nil
}

// newGrant returns what an entry grants, without its hash.
func newGrant(e entry) (*grant, error) {
	g := &grant{name: e.Name, role: e.Role, metrics: e.Metrics}
	switch {
	case e.Name == "" || strings.ContainsFunc(e.Name, unicode.IsControl):
		return nil, errors.New("a token needs a name")
	case len(e.Allow) == 0 && !e.Metrics:
		return nil, errors.New("a token that allows nothing is of no use")
	case e.Role == "none":
		return nil, errors.New(`"none" is no role`)
	}
	for _, s := range e.Allow {
		p, err := parsePattern(s)
		if err != nil {
			return nil, err
		}
		g.allow = append(g.allow, p)
	}
	return g, nil
}

// parsePattern reads "flow/transition", each written as in a URL, or *.
func parsePattern(s string) (pattern, error) {
	flow, transition, ok := strings.Cut(s, "/")
	if !ok || flow == "" || transition == "" || strings.Contains(transition, "/") {
		return pattern{}, fmt.Errorf("%q is not FLOW/TRANSITION: in names, / is %%2F, * is %%2A and %% is %%25", s)
	}
	p := pattern{anyFlow: flow == anything, anyTransition: transition == anything}
	var err error
	if p.flow, err = url.PathUnescape(flow); err == nil {
		p.transition, err = url.PathUnescape(transition)
	}
	if err != nil {
		return pattern{}, fmt.Errorf("%q: %w", s, err)
	}
	return p, nil
}

// NewToken makes a token, and its line for the file. The token is shown once: the
// file has its hash only.
func NewToken(name string, allow []string, role string, metrics bool) (token, line string, err error) {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(secret)
	hash := sha256.Sum256([]byte(token))
	e := entry{Name: name, SHA256: hex.EncodeToString(hash[:]), Allow: allow, Role: role, Metrics: metrics}
	if _, err := newGrant(e); err != nil {
		return "", "", err
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return "", "", err
	}
	return token, strings.TrimSuffix(text.String(), "\n"), nil
}

// bearer returns the grant of a token, nil if there is none.
func (t *Tokens) bearer(token string) *grant {
	return t.table.Load().find(sha256.Sum256([]byte(token)))
}

// still returns what the bearer of the same token may do now.
func (t *Tokens) still(g *grant) *grant { return t.table.Load().find(g.hash) }

func (t table) find(hash [sha256.Size]byte) *grant {
	var found *grant
	for _, g := range t[[8]byte(hash[:])] {
		if subtle.ConstantTimeCompare(g.hash[:], hash[:]) == 1 {
			found = g
		}
	}
	return found
}

// allows reports whether the bearer may perform a transition.
func (g *grant) allows(flow, transition string) bool {
	for _, p := range g.allow {
		if (p.anyFlow || p.flow == flow) && (p.anyTransition || p.transition == transition) {
			return true
		}
	}
	return false
}

// allowsSome reports whether the bearer may perform some transition of a flow, and
// whether that is every one.
func (g *grant) allowsSome(flow string) (some, all bool) {
	for _, p := range g.allow {
		if p.anyFlow || p.flow == flow {
			some, all = true, all || p.anyTransition
		}
	}
	return some, all
}
