// Packs one static program as an image that containerd imports without any registry: `image OUT.tar PROGRAM NAME…`.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

func pack(files map[string][]byte, order []string, mode int64) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range order {
		body := files[name]
		must(w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(body)), Format: tar.FormatUSTAR}))
		_, err := w.Write(body)
		must(err)
	}
	must(w.Close())
	return out.Bytes()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func encoded(value any) []byte {
	text, err := json.Marshal(value)
	must(err)
	return text
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: image OUT.tar PROGRAM NAME…")
		os.Exit(64)
	}
	program, err := os.ReadFile(os.Args[2])
	must(err)
	layer := pack(map[string][]byte{"pause": program}, []string{"pause"}, 0o755)
	config := encoded(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{"/pause"}},
		"rootfs": map[string]any{
			"type":     "layers",
			"diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))},
		},
	})
	manifest := encoded([]map[string]any{{
		"Config": "config.json", "RepoTags": os.Args[3:], "Layers": []string{"layer.tar"},
	}})
	image := pack(map[string][]byte{"layer.tar": layer, "config.json": config, "manifest.json": manifest},
		[]string{"layer.tar", "config.json", "manifest.json"}, 0o644)
	scratch := os.Args[1] + ".part"
	must(os.MkdirAll(filepath.Dir(scratch), 0o755))
	must(os.WriteFile(scratch, image, 0o644))
	must(os.Rename(scratch, os.Args[1]))
}
