package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/definition"
)

// largestFlowFile keeps a mistake, such as a data file, from filling the memory.
const largestFlowFile = 16 << 20

// readFlowFile reads a file that defines a flow; - is standard input.
func (c *console) readFlowFile(path string) (*definition.File, error) {
	in, name := c.in, "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil, notFound("", "there is no file %q", path)
		}
		if err != nil {
			return nil, fmt.Errorf("open the file: %w", err)
		}
		defer func() { _ = f.Close() }()
		in, name = f, path
	}
	text, err := io.ReadAll(io.LimitReader(in, largestFlowFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the file: %w", err)
	case len(text) > largestFlowFile:
		return nil, fmt.Errorf("%s is larger than 16 MB: that is no flow", name)
	case !utf8.Valid(text):
		return nil, fmt.Errorf("%s is not UTF-8", name)
	}
	return definition.ParseFile(name, string(text))
}

// flowOfFile returns the name of the flow that a file defines: as the user says, or the
// file, or what the file is called.
func flowOfFile(flag, path string, f *definition.File) (string, error) {
	switch {
	case flag != "":
		return flag, nil
	case f.Flow != "":
		return f.Flow, nil
	case path == "-":
		return "", usagef("which flow is it? --flow NAME")
	}
	base := filepath.Base(path)
	return strings.TrimSuffix(base, filepath.Ext(base)), nil
}

// agreed asks a question, and reports whether the answer is yes.
func (c *console) agreed(question string) (bool, error) {
	fmt.Fprintf(c.err, "%s [y/N] ", question)
	answer, err := bufio.NewReader(c.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}

// several writes a number and what there are so many of.
func several(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ownFlow explains why the definition of a flow cannot be read: its settings are shown
// to its owner only.
func ownFlow(err error, flow string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return &failure{code: exitFailure, message: fmt.Sprintf("flow %q belongs to another role", flow), hint: "it takes the rights of its owner"}
	}
	return needs(err, rightsOfAuthor)
}
