// Command jsonpatch makes cases of JSON patches with what the library of Kubernetes makes of them, one a line:
// {"doc": …, "patch": …, "result": … or "error": "…"}. The arguments are how many, and the seed.
//
//	go run ./jsonpatch 500 1 > ../../../crates/schema/testdata/json-patch.jsonl
package main

import (
	"encoding/json"
	"log"
	"math/rand"
	"os"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// val is any JSON, at most so deep.
func val(r *rand.Rand, d int) any {
	switch k := r.Intn(7); {
	case k == 0 && d > 0:
		m := map[string]any{}
		for i := 0; i < r.Intn(4); i++ {
			m[string(rune('a'+r.Intn(4)))] = val(r, d-1)
		}
		return m
	case k == 1 && d > 0:
		l := []any{}
		for i := 0; i < r.Intn(4); i++ {
			l = append(l, val(r, d-1))
		}
		return l
	case k == 2:
		return nil
	case k == 3:
		return r.Intn(3)
	case k == 4:
		return r.Intn(2) == 0
	default:
		return []string{"x", "y", "a/b", "~"}[r.Intn(4)]
	}
}

// path leads into a document, or a step beside it.
func path(r *rand.Rand, doc any) string {
	p := ""
	if r.Intn(20) == 0 {
		return ""
	}
	for {
		switch d := doc.(type) {
		case map[string]any:
			k := string(rune('a' + r.Intn(4)))
			p += "/" + k
			doc = d[k]
		case []any:
			i := r.Intn(len(d)+2) - 1
			if r.Intn(8) == 0 {
				p += "/-"
				return p
			}
			p += "/" + strconv.Itoa(i)
			if i >= 0 && i < len(d) {
				doc = d[i]
			} else {
				doc = nil
			}
		default:
			if r.Intn(4) == 0 {
				p += "/a"
			}
			return p
		}
		if r.Intn(3) == 0 {
			return p
		}
	}
}

// apply puts what becomes of a document into a line; false where the library panics, or its text is broken.
func apply(doc, body []byte, line map[string]any) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	patch, err := jsonpatch.DecodePatch(body)
	if err == nil {
		var result []byte
		if result, err = patch.Apply(doc); err == nil {
			line["result"] = json.RawMessage(result)
			return true
		}
	}
	line["error"] = err.Error()
	return !strings.Contains(err.Error(), "%!w")
}

func main() {
	n, _ := strconv.Atoi(os.Args[1])
	seed, _ := strconv.ParseInt(os.Args[2], 10, 64)
	r := rand.New(rand.NewSource(seed))
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for i := 0; i < n; i++ {
		doc := map[string]any{}
		for j := 0; j < 4; j++ {
			doc[string(rune('a'+r.Intn(4)))] = val(r, 3)
		}
		var ops []any
		for j := 0; j <= r.Intn(3); j++ {
			op := []string{"add", "remove", "replace", "move", "copy", "test"}[r.Intn(6)]
			o := map[string]any{"op": op, "path": path(r, any(doc))}
			switch op {
			case "add", "replace", "test":
				o["value"] = val(r, 2)
			case "move", "copy":
				o["from"] = path(r, any(doc))
			}
			ops = append(ops, o)
		}
		d, _ := json.Marshal(doc)
		p, _ := json.Marshal(ops)
		line := map[string]any{"doc": json.RawMessage(d), "patch": json.RawMessage(p)}
		if !apply(d, p, line) {
			continue
		}
		if err := out.Encode(line); err != nil {
			log.Fatal(err)
		}
	}
}
