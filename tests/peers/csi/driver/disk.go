package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// disk keeps volumes and snapshots below one folder: <kind>/<id>/record.json and <kind>/<id>/data. Drivers of several
// nodes on one machine can share it; each is known by nodes/<hash of its name>.
type disk struct {
	root string
	lock sync.Mutex
}

const (
	volumes   = "volumes"
	snapshots = "snapshots"
	nodes     = "nodes"
)

// record is what is known of a volume or a snapshot.
type record struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Bytes.
	Capacity int64 `json:"capacity"`
	// The volume or snapshot it was copied from.
	Source string `json:"source,omitempty"`
	// Nodes it is attached to.
	Nodes   []string          `json:"nodes,omitempty"`
	Mutable map[string]string `json:"mutable,omitempty"`
	Made    time.Time         `json:"made"`
}

func openDisk(root, node string) (*disk, error) {
	for _, folder := range []string{volumes, snapshots, filepath.Join(nodes, idOf(node))} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o750); err != nil {
			return nil, err
		}
	}
	return &disk{root: root}, nil
}

// knows is whether a driver has ever run for a node.
func (d *disk) knows(node string) bool {
	_, err := os.Stat(filepath.Join(d.root, nodes, idOf(node)))
	return err == nil
}

// idOf makes creation idempotent: a name always has the same id.
func idOf(name string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(name)))[:24]
}

func (d *disk) folder(kind, id string) string {
	return filepath.Join(d.root, kind, id)
}

// data is the folder of the content. An id that would lead elsewhere belongs to nothing.
func (d *disk) data(kind, id string) (string, error) {
	folder := d.folder(kind, id)
	if id == "" || filepath.Dir(folder) != filepath.Join(d.root, kind) || !inside(folder, d.root) {
		return "", status.Errorf(codes.NotFound, "no %s %q", kind, id)
	}
	data := filepath.Join(folder, "data")
	if _, err := os.Stat(data); err != nil {
		return "", status.Errorf(codes.NotFound, "no %s %q", kind, id)
	}
	return data, nil
}

func (d *disk) load(kind, id string) (*record, error) {
	if _, err := d.data(kind, id); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(d.folder(kind, id), "record.json"))
	if err != nil {
		return nil, err
	}
	r := &record{}
	return r, json.Unmarshal(text, r)
}

func (d *disk) save(kind string, r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	file := filepath.Join(d.folder(kind, r.ID), "record.json")
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// create makes a volume or snapshot with a copy of another's content, or with none. The content is there at once or not
// at all.
func (d *disk) create(kind string, r *record, from string) error {
	folder := d.folder(kind, r.ID)
	draft := filepath.Join(folder, "draft")
	if err := os.RemoveAll(draft); err != nil {
		return err
	}
	if err := os.MkdirAll(draft, 0o777); err != nil {
		return err
	}
	// Pods of any user write here; what keeps others out is the folder above.
	if err := os.Chmod(draft, 0o777); err != nil {
		return err
	}
	if from != "" {
		if err := os.CopyFS(draft, os.DirFS(from)); err != nil {
			return err
		}
	}
	if err := d.save(kind, r); err != nil {
		return err
	}
	return os.Rename(draft, filepath.Join(folder, "data"))
}

// remove takes away a volume or snapshot; one that is not there is none.
func (d *disk) remove(kind, id string) error {
	if _, err := d.data(kind, id); status.Code(err) == codes.NotFound {
		return nil
	}
	return os.RemoveAll(d.folder(kind, id))
}

// list returns all of a kind, by id.
func (d *disk) list(kind string) ([]*record, error) {
	entries, err := os.ReadDir(filepath.Join(d.root, kind))
	if err != nil {
		return nil, err
	}
	var all []*record
	for _, entry := range entries {
		r, err := d.load(kind, entry.Name())
		if status.Code(err) == codes.NotFound || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// page cuts a list at a token, which is the id of its first entry.
func page(all []*record, token string, most int32) (some []*record, next string, err error) {
	if token != "" {
		at := slices.IndexFunc(all, func(r *record) bool { return r.ID == token })
		if at < 0 {
			return nil, "", status.Errorf(codes.Aborted, "nothing begins at %q", token)
		}
		all = all[at:]
	}
	if most > 0 && int(most) < len(all) {
		return all[:most], all[most].ID, nil
	}
	return all, "", nil
}
