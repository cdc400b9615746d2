package shop

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/idemq/idemq/outbox"
)

// item is something to buy.
type item struct {
	ID, Name string
	Cents    int64
}

var items = []item{
	{"espresso", "Espresso beans, 250 g", 690},
	{"assam", "Assam tea, 100 g", 540},
	{"cups", "Two cups", 1800},
}

const maxQuantity = 9

// order is the row, and the message's body.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Item     string `json:"item"` // its name
	Quantity int    `json:"quantity"`
	Cents    int64  `json:"cents"`
	Way      string `json:"way"` // by which it came
}

// orderOf reads what a form or a payment asks for. It has no number yet.
func orderOf(r *http.Request, way string) (order, error) {
	o := order{Customer: pseudonym(customerOf(r)), Way: way}
	for _, i := range items {
		if i.ID == r.PostFormValue("item") {
			o.Item, o.Cents = i.Name, i.Cents
		}
	}
	if o.Item == "" {
		return o, fmt.Errorf("there is no item %q", r.PostFormValue("item"))
	}
	n, err := strconv.Atoi(r.PostFormValue("quantity"))
	if err != nil || n < 1 || n > maxQuantity {
		return o, fmt.Errorf("the quantity must be 1 to %d", maxQuantity)
	}
	o.Quantity, o.Cents = n, o.Cents*int64(n)
	return o, nil
}

// numberFor makes an order's number of what names the request that places it: a token, or a key and its
// owner. A process can die, or lose its connection, after the order is committed and before the token or
// the key says "done"; whoever then does the work again finds this order instead of making another.
func numberFor(request string) string {
	sum := sha256.Sum256([]byte("order " + request))
	return base32.StdEncoding.EncodeToString(sum[:])[:10]
}

// place writes the order and the message about it in one transaction.
func (s *Shop) place(ctx context.Context, o order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return s.out.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		added, err := s.tables.addOrder(ctx, tx, o)
		if err != nil || !added {
			return err
		}
		return s.out.Write(ctx, tx, outbox.Message{ID: "order-" + o.ID, Topic: s.parts.Topic, Key: o.Customer, Body: body})
	})
}
