package davittest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Template is the objects of a cluster that was prepared once. What takes long to make (definitions, charts, thousands of
// objects) is there in each copy from its first moment: Options.Template.
type Template struct{ dir string }

// Prepare starts a cluster with these options, has prepare make what the copies are to have, and stops it. Whoever calls it
// calls Remove when no copy is to be started any more, most often at the end of TestMain.
func Prepare(ctx context.Context, options Options, prepare func(context.Context, *Cluster) error) (*Template, error) {
	if options.Node {
		return nil, errors.New("a template has no node of its own: containers cannot be copied")
	}
	dir, err := os.MkdirTemp("", "davit-template-")
	if err != nil {
		return nil, fmt.Errorf("cannot make the template's directory: %w", err)
	}
	template := &Template{dir}
	if err := template.prepare(ctx, options, prepare); err != nil {
		return nil, errors.Join(err, template.Remove())
	}
	return template, nil
}

func (t *Template) prepare(ctx context.Context, options Options, prepare func(context.Context, *Cluster) error) error {
	cluster, err := launch(ctx, options, []string{"--data-dir", t.dataDir(), "--port", "0"})
	if err != nil {
		return err
	}
	return errors.Join(prepare(ctx, cluster), cluster.Stop())
}

// Remove removes the template. Copies that run go on.
func (t *Template) Remove() error { return os.RemoveAll(t.dir) }

func (t *Template) dataDir() string { return filepath.Join(t.dir, "data") }
