package davittest

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

const (
	// shownLines of a log stand in errors.
	shownLines = 40
	// shownBytes are read for them.
	shownBytes = 64 << 10
	// nameLength is as much of a test's name as is in the name of its log.
	nameLength = 100
)

// log is what a cluster writes. It has a name only below DAVIT_TEST_LOGS, or once it is kept: a test that is killed leaves
// nothing where temporary files are.
type log struct {
	file  *os.File
	test  string
	named bool
}

func newLog(test string) (*log, error) {
	dir := os.Getenv("DAVIT_TEST_LOGS")
	l := &log{test: test, named: dir != ""}
	var err error
	if l.file, err = l.create(dir); err != nil || l.named {
		return l, err
	}
	return l, os.Remove(l.file.Name())
}

func (l *log) create(dir string) (*os.File, error) {
	plain := func(r rune) rune {
		if strings.ContainsRune("-_.", r) || r < 128 && ('0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z') {
			return r
		}
		return '-'
	}
	name := strings.Map(plain, l.test)
	name = name[:min(len(name), nameLength)]
	return os.CreateTemp(dir, fmt.Sprintf("davittest-%s-%d-*.log", name, os.Getpid()))
}

// tail is the last lines.
func (l *log) tail() string {
	about, err := l.file.Stat()
	if err != nil {
		return err.Error()
	}
	read := make([]byte, min(about.Size(), shownBytes))
	n, _ := l.file.ReadAt(read, about.Size()-int64(len(read)))
	lines := strings.Split(strings.TrimRight(string(read[:n]), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-shownLines):], "\n")
}

// keep closes the log and says where it is.
func (l *log) keep() (string, error) {
	defer l.file.Close()
	if l.named {
		return l.file.Name(), nil
	}
	kept, err := l.create("")
	if err != nil {
		return "", err
	}
	defer kept.Close()
	_, err = io.Copy(kept, io.NewSectionReader(l.file, 0, math.MaxInt64))
	return kept.Name(), err
}

// drop leaves nothing of it.
func (l *log) drop() {
	_ = l.file.Close()
	if l.named {
		_ = os.Remove(l.file.Name())
	}
}
