package main

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// unescape undoes what the kernel writes for blanks.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mounts returns the roots within their file systems by the places where they are mounted, as this process sees them.
func mounts() (map[string]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all := map[string]string{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			all[unescape.Replace(fields[4])] = unescape.Replace(fields[3])
		}
	}
	return all, lines.Err()
}

// mountsOf returns the places where something below a folder is mounted. The folder's file system may itself be mounted
// below another, so roots are compared by their ends; names of volumes are hashes.
func mountsOf(folder string) ([]string, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	end := filepath.Join(filepath.Base(filepath.Dir(folder)), filepath.Base(folder), "data")
	var places []string
	for place, root := range all {
		if strings.HasSuffix(root, "/"+end) {
			places = append(places, place)
		}
	}
	return places, nil
}

func isMounted(path string) (bool, error) {
	all, err := mounts()
	_, there := all[filepath.Clean(path)]
	return there, err
}

// bind mounts a folder at another place too. Mounted already: nothing is changed.
func bind(from, to string, readonly bool) error {
	if there, err := isMounted(to); err != nil || there {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return &os.LinkError{Op: "bind", Old: from, New: to, Err: err}
	}
	if !readonly {
		return nil
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		_ = unix.Unmount(to, unix.MNT_DETACH)
		return &os.PathError{Op: "make read-only", Path: to, Err: err}
	}
	return nil
}

// unbind unmounts a place; one that is not mounted is done.
func unbind(path string) error {
	for {
		if there, err := isMounted(path); err != nil || !there {
			return err
		}
		if err := unix.Unmount(path, 0); err != nil {
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}
