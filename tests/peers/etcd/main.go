// The server of etcd as it is, built from its public module: the store that davit keeps objects in where one process is
// not enough.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
