package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// least is the size of a device whose volume has none.
const least = 1 << 20

// image is the file behind a volume's device.
func (d *disk) image(id string) string {
	return filepath.Join(d.folder(volumes, id), "disk.img")
}

func losetup(arguments ...string) (string, error) {
	out, err := exec.Command("losetup", arguments...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("losetup %s: %s", strings.Join(arguments, " "), strings.TrimSpace(string(failed.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// device is the loop device of a volume, empty if it has none.
func (d *disk) device(id string) (string, error) {
	if _, err := os.Stat(d.image(id)); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	line, err := losetup("--noheadings", "--output", "NAME", "--associated", d.image(id))
	return strings.TrimSpace(strings.SplitN(line, "\n", 2)[0]), err
}

// connect gives a volume a loop device.
func (d *disk) connect(id string) error {
	d.lock.Lock()
	defer d.lock.Unlock()
	there, err := d.load(volumes, id)
	if err != nil {
		return err
	}
	if err := grow(d.image(id), max(there.Capacity, least)); err != nil {
		return err
	}
	if device, err := d.device(id); err != nil || device != "" {
		return err
	}
	_, err = losetup("--find", d.image(id))
	return err
}

// disconnect takes the loop device of a volume away.
func (d *disk) disconnect(id string) error {
	d.lock.Lock()
	defer d.lock.Unlock()
	device, err := d.device(id)
	if err != nil || device == "" {
		return err
	}
	_, err = losetup("--detach", device)
	return err
}

// publishDevice binds the loop device of a volume to a file.
func (d *disk) publishDevice(id, target string, readonly bool) error {
	device, err := d.device(id)
	if err != nil {
		return err
	}
	if device == "" {
		return status.Errorf(codes.FailedPrecondition, "%s is not staged as a device", id)
	}
	file, err := os.OpenFile(target, os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return bind(device, target, readonly)
}

// expandDevice makes the loop device of a volume larger; one without is left.
func (d *disk) expandDevice(id string, size int64) error {
	device, err := d.device(id)
	if err != nil || device == "" {
		return err
	}
	if err := grow(d.image(id), size); err != nil {
		return err
	}
	_, err = losetup("--set-capacity", device)
	return err
}

// grow makes a file at least that large.
func grow(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	there, err := file.Stat()
	if err != nil || there.Size() >= size {
		return err
	}
	return file.Truncate(size)
}
