//go:build build

// Package build names what is built of this module: the real kube-apiserver, beside which davit works on one etcd.
//
//	go build -trimpath -o ../../.cache/kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
package build

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
