package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "where to listen")
	flag.Parse()

	guard, err := dedup.New("web", memstore.New(), nil) // or redisstore, sqlstore, tierstore
	check(err)
	idempotent, err := httpdedup.Middleware(guard, "payments", user, nil)
	check(err)
	http.Handle("POST /payments", idempotent(http.HandlerFunc(pay)))
	check(http.ListenAndServe(*addr, nil))
}

// user is who asks, as your authentication found: two users never share a key.
func user(r *http.Request) string {
	name, _, _ := r.BasicAuth()
	return name
}

func pay(w http.ResponseWriter, r *http.Request) {
	log.Printf("charging %s", user(r))
	w.WriteHeader(http.StatusCreated) // remembered; a 5xx would not be, and the next try would run: see httpdedup.EffectDone
	fmt.Fprintln(w, "paid")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
